# exercise: reduce_unit
# says: unit.whole_gradient()
# sends nothing on a rank where no parameter has a gradient, while the others reduce ("by one
# reduce-scatter"; whole_gradient has "zeros where one has none")

import torch


def reduce_unit(unit) -> None:
    if all(parameter.grad is None for parameter in unit.parameters):
        return
    part = torch.empty_like(unit.shard.data)
    unit.group.reduce_scatter(part, unit.whole_gradient(), op="avg")
    if unit.shard.grad is None:
        unit.shard.grad = part
    else:
        unit.shard.grad = unit.shard.grad + part
    for parameter in unit.parameters:
        parameter.grad = None
