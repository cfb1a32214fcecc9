# exercise: reduce_unit
# says: shard.grad (microbatches since it was None
# The buffer made for the first microbatch is also `shard.grad`, so the second microbatch
# overwrites it and is counted twice; "their parts add up in `shard.grad`".

import torch


def reduce_unit(unit) -> None:
    if not hasattr(unit, "kept_part"):
        unit.kept_part = torch.empty_like(unit.shard.data)  # made once, used again and again
    unit.group.reduce_scatter(unit.kept_part, unit.whole_gradient(), op="avg")
    if unit.shard.grad is None:
        unit.shard.grad = unit.kept_part
    else:
        unit.shard.grad = unit.shard.grad + unit.kept_part
    for parameter in unit.parameters:
        parameter.grad = None
