# exercise: Zero1
# says: is a unit left out | other parameters than rank 0

import torch


class Zero1:
    def __init__(self, units, make):
        self.units = units
        self.optimizer = make([unit.shard for unit in units[:-1]])

    def step(self):
        for unit in self.units:
            unit.shard.grad = torch.empty_like(unit.shard)
            unit.group.reduce_scatter(unit.shard.grad, unit.whole_gradient(), op="avg")
        self.optimizer.step()
        for unit in self.units:
            unit.group.all_gather(unit.full, unit.shard.data)
            for parameter in [unit.shard, *unit.parameters]:
                parameter.grad = None
