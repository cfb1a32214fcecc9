# exercise: reduce_unit
# says: still have their whole gradient

import torch


def reduce_unit(unit):
    part = torch.empty_like(unit.shard.data)
    unit.group.reduce_scatter(part, unit.whole_gradient(), op="avg")
    unit.shard.grad = part if unit.shard.grad is None else unit.shard.grad + part
    return
