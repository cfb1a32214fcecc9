# exercise: reduce_unit
# says: its parameters still have their whole gradient
# The parameters' gradients are set to zero instead of to None: the values are right, the memory
# stays taken.

import torch


def reduce_unit(unit) -> None:
    part = torch.empty_like(unit.shard.data)
    unit.group.reduce_scatter(part, unit.whole_gradient(), op="avg")
    if unit.shard.grad is None:
        unit.shard.grad = part
    else:
        unit.shard.grad += part
    for parameter in unit.parameters:
        if parameter.grad is not None:
            parameter.grad.zero_()
