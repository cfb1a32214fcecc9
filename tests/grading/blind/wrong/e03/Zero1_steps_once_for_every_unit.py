# exercise: Zero1
# says: once for every unit
# calls the one optimizer's step in the loop over units while earlier shards still have their
# gradients: with several units the first is updated several times a step ("Average into each
# `unit.shard.grad`, update, gather each")

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
            unit.shard.grad = None
            for p in unit.parameters:
                p.grad = None
