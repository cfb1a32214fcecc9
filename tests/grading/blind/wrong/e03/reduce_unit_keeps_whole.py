# exercise: reduce_unit
# says: neither a whole gradient, a copy nor a buffer
# The whole gradient (S,) stays alive as an attribute of the unit, so all gradients lie there
# after backward; "keep 1/N, free the rest before the next unit's come".

import torch


def reduce_unit(unit) -> None:
    unit.kept_whole = unit.whole_gradient()  # (S,), handy for its norm later
    part = torch.empty_like(unit.shard.data)
    unit.group.reduce_scatter(part, unit.kept_whole, op="avg")
    unit.shard.grad = part if unit.shard.grad is None else unit.shard.grad + part
    for parameter in unit.parameters:
        parameter.grad = None
