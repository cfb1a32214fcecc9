# exercise: Zero3
# says: the next step would compute with old parameters
# does not free the last unit after its forward, since its backward comes next; in evaluation it
# stays full ("`unit` has 0 bytes until its backward")

import torch

if "reduce_unit" not in globals():  # an earlier exercise, right

    def reduce_unit(unit) -> None:
        part = torch.empty_like(unit.shard.data)
        unit.group.reduce_scatter(part, unit.whole_gradient(), op="avg")
        had = unit.shard.grad
        unit.shard.grad = part if had is None else had + part
        for parameter in unit.parameters:
            parameter.grad = None


class Zero3:
    """Gathers, prefetches, frees and reduces the units of a model while it runs."""

    def __init__(self, units: list):
        self.units = units
        for unit in units:
            unit.watch(self.before_forward, self.after_forward, self.before_backward)
            unit.when_complete(self.after_backward)

    def before_forward(self, unit) -> None:
        unit.gather()
        place = self.units.index(unit)
        if place + 1 < len(self.units):
            self.units[place + 1].start_gather()

    def after_forward(self, unit) -> None:
        if unit is not self.units[-1]:
            unit.free()

    def before_backward(self, unit) -> None:
        unit.gather()
        place = self.units.index(unit)
        if place > 0:
            self.units[place - 1].start_gather()

    def after_backward(self, unit) -> None:
        reduce_unit(unit)
        unit.free()
