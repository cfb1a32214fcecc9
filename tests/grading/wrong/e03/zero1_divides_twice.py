# exercise: Zero1
# says: divided by the number of ranks twice

import torch


class Zero1:
    def __init__(self, units, make):
        self.units = units
        self.optimizer = make([unit.shard for unit in units])

    def step(self):
        for unit in self.units:
            unit.shard.grad = torch.empty_like(unit.shard)
            unit.group.reduce_scatter(unit.shard.grad, unit.whole_gradient(), op="avg")
            unit.shard.grad /= unit.group.size
        self.optimizer.step()
        for unit in self.units:
            unit.group.all_gather(unit.full, unit.shard.data)
            for parameter in [unit.shard, *unit.parameters]:
                parameter.grad = None
