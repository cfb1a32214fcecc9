# exercise: reduce_unit
# says: are in memory beside every shard.grad

import torch


def reduce_unit(unit):
    """The tensor that it was given goes; a clone of it stays."""
    whole = unit.whole_gradient()
    unit.kept = whole.clone()
    part = torch.empty_like(unit.shard.data)
    unit.group.reduce_scatter(part, whole, op="avg")
    unit.shard.grad = part if unit.shard.grad is None else unit.shard.grad + part
    for parameter in unit.parameters:
        parameter.grad = None
