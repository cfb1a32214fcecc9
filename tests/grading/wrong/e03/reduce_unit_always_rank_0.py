# exercise: reduce_unit
# says: that is rank 0's part

import torch


def reduce_unit(unit):
    part = torch.empty_like(unit.shard.data)
    part.copy_(unit.group.all_reduce(unit.whole_gradient(), op="avg").chunk(unit.group.size)[0])
    unit.shard.grad = part if unit.shard.grad is None else unit.shard.grad + part
    for parameter in unit.parameters:
        parameter.grad = None
