# exercise: Zero1
# says: units of equal size with one gradient
# Units of equal size share one gradient buffer within a step, so all but the last of them are
# updated with another unit's gradient; docstring: "Average into each `unit.shard.grad`".

import torch


class Zero1:
    """Parameters and gradients on every rank, optimizer state of the own shards only."""

    def __init__(self, units: list, make):
        self.units = units
        self.optimizer = make([unit.shard for unit in units])

    def step(self) -> None:
        buffers = {}  # shards of one size use one buffer
        for unit in self.units:
            size = unit.shard.numel()
            if size not in buffers:
                buffers[size] = torch.empty_like(unit.shard)
            unit.group.reduce_scatter(buffers[size], unit.whole_gradient(), op="avg")
            unit.shard.grad = buffers[size]
        self.optimizer.step()
        for unit in self.units:
            unit.group.all_gather(unit.full, unit.shard.data)
            unit.shard.grad = None
            for parameter in unit.parameters:
                parameter.grad = None
