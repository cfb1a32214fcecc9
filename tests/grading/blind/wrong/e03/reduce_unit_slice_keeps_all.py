# exercise: reduce_unit
# says: a slice keeps the whole tensor behind it
# the part it keeps is a slice of a tensor of S elements, so that all of that stays in memory
# ("Beware of slices: `whole[:n]` keeps all of `whole` alive")

import torch


def reduce_unit(unit) -> None:
    whole = unit.whole_gradient()
    part = torch.empty_like(whole)[: unit.shard.numel()]
    unit.group.reduce_scatter(part, whole, op="avg")
    if unit.shard.grad is None:
        unit.shard.grad = part
    else:
        unit.shard.grad += part
    for parameter in unit.parameters:
        parameter.grad = None
