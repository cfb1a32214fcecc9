# exercise: reduce_unit
# says: that is the sum over ranks

import torch


def reduce_unit(unit):
    part = torch.empty_like(unit.shard.data)
    unit.group.reduce_scatter(part, unit.whole_gradient())
    unit.shard.grad = part if unit.shard.grad is None else unit.shard.grad + part
    for parameter in unit.parameters:
        parameter.grad = None
