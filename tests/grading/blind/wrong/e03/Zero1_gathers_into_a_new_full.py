# exercise: Zero1
# says: give new memory to neither of them
# gathers into a new tensor, points `full` and the parameters at it, and leaves the shard in the
# old one: right values, but the shard is no view any more and holds the old memory ("Parameters
# and shards stay views of `full`")

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
            full, begin = torch.empty_like(unit.full), 0
            unit.group.all_gather(full, unit.shard.data)
            unit.full = full
            for p in unit.parameters:
                p.data = full[begin : begin + p.numel()].view(p.shape)
                p.grad = None
                begin += p.numel()
            unit.shard.grad = None
