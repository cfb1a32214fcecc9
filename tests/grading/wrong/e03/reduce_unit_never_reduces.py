# exercise: reduce_unit
# says: it was never reduced

import torch


def reduce_unit(unit):
    part = torch.empty_like(unit.shard.data)
    part.copy_(unit.whole_gradient().chunk(unit.group.size)[unit.group.rank])
    unit.shard.grad = part if unit.shard.grad is None else unit.shard.grad + part
    for parameter in unit.parameters:
        parameter.grad = None
