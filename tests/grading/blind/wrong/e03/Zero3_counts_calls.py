# exercise: Zero3
# says: in the passes before it was
# knows the neighbour from a counter that only backward takes back; after an evaluation there is
# no prefetch any more, or of a wrong unit ("So in every forward and backward, and in
# evaluation")

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
        self.place = 0  # how many units are through
        for unit in units:
            unit.watch(self.before_forward, self.after_forward, self.before_backward)
            unit.when_complete(self.after_backward)

    def before_forward(self, unit) -> None:
        unit.gather()
        self.place += 1
        if self.place < len(self.units):
            self.units[self.place].start_gather()

    def after_forward(self, unit) -> None:
        unit.free()

    def before_backward(self, unit) -> None:
        unit.gather()
        self.place -= 1
        if 0 < self.place <= len(self.units):
            self.units[self.place - 1].start_gather()

    def after_backward(self, unit) -> None:
        reduce_unit(unit)
        unit.free()
