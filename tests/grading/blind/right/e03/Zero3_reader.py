# a reader's answer to `Zero3`, in which others made the mistakes of wrong/e03/Zero3_reader.diff

import torch


def _reduce(unit):
    part = torch.empty_like(unit.shard.data)
    unit.group.reduce_scatter(part, unit.whole_gradient(), op="avg")
    unit.shard.grad = part if unit.shard.grad is None else unit.shard.grad + part
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
        unit.free()

    def before_backward(self, unit) -> None:
        unit.gather()
        place = self.units.index(unit)
        if place > 0:
            self.units[place - 1].start_gather()

    def after_backward(self, unit) -> None:
        _reduce(unit)
        unit.free()
