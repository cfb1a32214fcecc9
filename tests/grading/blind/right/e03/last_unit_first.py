# right: Zero1 takes the units from the last to the first, and sets gradients only when all are reduced; Zero3 starts its own gather, then its neighbour's, and only then waits for its own; reduce_unit adds into the new part.
import torch


class Zero1:
    """Parameters and gradients on every rank, optimizer state of the own shards only."""

    def __init__(self, units: list, make):
        self.units = units
        self.optimizer = make([unit.shard for unit in reversed(units)])

    def step(self) -> None:
        means = []
        for unit in reversed(self.units):
            mean = unit.shard.data.new_empty(unit.shard.shape)
            unit.group.reduce_scatter(mean, unit.whole_gradient(), op="avg")
            for parameter in unit.parameters:
                parameter.grad = None
            means.append(mean)
        for unit, mean in zip(reversed(self.units), means):
            unit.shard.grad = mean
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        for unit in reversed(self.units):
            unit.group.all_gather(unit.full, unit.shard.data)


def reduce_unit(unit) -> None:
    total = torch.zeros_like(unit.shard.data)
    unit.group.reduce_scatter(total, unit.whole_gradient(), op="avg")
    if unit.shard.grad is not None:
        total += unit.shard.grad
    unit.shard.grad = total
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
        unit.start_gather()
        place = next(i for i, other in enumerate(self.units) if other is unit)
        for neighbour in self.units[place + 1 : place + 2]:  # none after the last
            neighbour.start_gather()
        unit.gather()

    def after_forward(self, unit) -> None:
        unit.free()

    def before_backward(self, unit) -> None:
        unit.start_gather()
        place = next(i for i, other in enumerate(self.units) if other is unit)
        for neighbour in self.units[:place][-1:]:  # none before the first
            neighbour.start_gather()
        unit.gather()

    def after_backward(self, unit) -> None:
        reduce_unit(unit)
        unit.free()
