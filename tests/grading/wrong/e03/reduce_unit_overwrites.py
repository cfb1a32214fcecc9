# exercise: reduce_unit
# says: the last microbatch's alone

import torch


def reduce_unit(unit):
    part = torch.empty_like(unit.shard.data)
    unit.group.reduce_scatter(part, unit.whole_gradient(), op="avg")
    unit.shard.grad = part
    for parameter in unit.parameters:
        parameter.grad = None
