# exercise: Zero1
# says: all_gather the shards into `full` after it
# `full` is gathered before the update, so a rank sees new values in its own shard and old ones
# in all others; docstring: "Average into each `unit.shard.grad`, update, gather each
# `unit.full`".

import torch


class Zero1:
    """Parameters and gradients on every rank, optimizer state of the own shards only."""

    def __init__(self, units: list, make):
        self.units = units
        self.optimizer = make([unit.shard for unit in units])

    def step(self) -> None:
        for unit in self.units:
            unit.shard.grad = torch.empty_like(unit.shard)
            unit.group.reduce_scatter(unit.shard.grad, unit.whole_gradient(), op="avg")
            unit.group.all_gather(unit.full, unit.shard.data)
        self.optimizer.step()
        for unit in self.units:
            unit.shard.grad = None
            for parameter in unit.parameters:
                parameter.grad = None
