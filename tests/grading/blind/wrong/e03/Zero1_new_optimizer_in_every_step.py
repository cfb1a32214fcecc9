# exercise: Zero1
# says: made anew for every step
# makes a new optimizer in every step, so that the moments are lost; only the first step is
# right ("Parameters and gradients on every rank, optimizer state of the own shards only": state
# that is kept)

import torch


class Zero1:
    """Parameters and gradients on every rank, optimizer state of the own shards only."""

    def __init__(self, units: list, make):
        self.units = units
        self.make = make

    def step(self) -> None:
        for unit in self.units:
            unit.shard.grad = torch.empty_like(unit.shard)
            unit.group.reduce_scatter(
                unit.shard.grad, unit.whole_gradient(), op="avg"
            )
        optimizer = self.make([unit.shard for unit in self.units])
        optimizer.step()
        for unit in self.units:
            unit.group.all_gather(unit.full, unit.shard.data)
            unit.shard.grad = None
            for p in unit.parameters:
                p.grad = None
