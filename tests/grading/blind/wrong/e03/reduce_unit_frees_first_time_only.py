# exercise: reduce_unit
# says: microbatch 2: 2 x
# From the second microbatch on the parameters keep their gradients (and the third microbatch
# counts the second again); docstring: "no parameter of the unit keeps a gradient".

import torch


def reduce_unit(unit) -> None:
    part = torch.empty_like(unit.shard.data)
    unit.group.reduce_scatter(part, unit.whole_gradient(), op="avg")
    if unit.shard.grad is None:
        unit.shard.grad = part
        for parameter in unit.parameters:
            parameter.grad = None
    else:
        unit.shard.grad = unit.shard.grad + part
