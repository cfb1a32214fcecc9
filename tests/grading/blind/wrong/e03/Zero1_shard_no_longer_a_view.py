# exercise: Zero1
# says: give new memory to neither of them
# gives each shard a copy of its own before the gather, so that it is no view of `full` any more
# ("Parameters and shards stay views of `full`").

import torch


class Zero1:
    def __init__(self, units: list, make):
        self.units = units
        self.optimizer = make([unit.shard for unit in units])

    def step(self) -> None:
        for unit in self.units:
            unit.shard.grad = torch.empty_like(unit.shard.data)
            unit.group.reduce_scatter(unit.shard.grad, unit.whole_gradient(), op="avg")
        self.optimizer.step()
        for unit in self.units:
            # what is sent should not overlap what is filled
            unit.shard.data = unit.shard.data.clone()
            unit.group.all_gather(unit.full, unit.shard.data)
            unit.shard.grad = None
            for parameter in unit.parameters:
                parameter.grad = None
