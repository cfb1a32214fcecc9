# exercise: Zero1
# says: it is not sharded

import torch


class Zero1:
    """It steps whole flat tensors, and gathers what all have already."""

    def __init__(self, units, make):
        self.units = units
        self.whole = [torch.nn.Parameter(unit.full) for unit in units]
        self.optimizer = make(self.whole)

    def step(self):
        for unit, whole in zip(self.units, self.whole):
            part = torch.empty_like(unit.shard.data)
            unit.group.reduce_scatter(part, unit.whole_gradient(), op="avg")
            whole.grad = torch.zeros_like(whole)
            whole.grad.chunk(unit.group.size)[unit.group.rank].copy_(part)
        self.optimizer.step()
        for unit in self.units:
            unit.group.all_gather(unit.full, unit.shard.data)
            for parameter in unit.parameters:
                parameter.grad = None
