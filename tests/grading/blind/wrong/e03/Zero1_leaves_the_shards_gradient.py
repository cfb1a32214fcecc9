# exercise: Zero1
# says: it takes memory during the next forward and backward
# the shards keep their gradients after the step ("then no gradient is left, neither a
# parameter's nor a shard's")

import torch


class Zero1:
    """Parameters and gradients on every rank, optimizer state of the own shards only."""

    def __init__(self, units: list, make):
        self.units = units
        self.optimizer = make([unit.shard for unit in units])

    def step(self) -> None:
        for unit in self.units:
            unit.shard.grad = torch.empty_like(unit.shard)
            unit.group.reduce_scatter(
                unit.shard.grad, unit.whole_gradient(), op="avg"
            )
        self.optimizer.step()
        for unit in self.units:
            unit.group.all_gather(unit.full, unit.shard.data)
            for p in unit.parameters:
                p.grad = None
