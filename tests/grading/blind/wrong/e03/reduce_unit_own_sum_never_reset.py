# exercise: reduce_unit
# says: keep a sum of your own
# keeps a sum of its own on the unit; after a step has set shard.grad to None, the gradients of
# the steps before come back ("Adds ... to `unit.shard.grad` (None at first)").

import torch


def reduce_unit(unit) -> None:
    part = torch.empty_like(unit.shard.data)
    unit.group.reduce_scatter(part, unit.whole_gradient(), op="avg")
    so_far = getattr(unit, "reduced", None)
    unit.reduced = part if so_far is None else so_far + part
    unit.shard.grad = unit.reduced
    for parameter in unit.parameters:
        parameter.grad = None
