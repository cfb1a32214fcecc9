# exercise: reduce_unit
# says: a slice keeps the whole tensor behind it

import torch


def reduce_unit(unit):
    part = torch.empty_like(unit.shard.data)
    part = unit.group.all_reduce(unit.whole_gradient(), op="avg").chunk(unit.group.size)[
        unit.group.rank
    ]
    if unit.shard.grad is not None:
        part += unit.shard.grad
    unit.shard.grad = part
    for parameter in unit.parameters:
        parameter.grad = None
