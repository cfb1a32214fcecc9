# exercise: Zero1
# says: the gradients were never reduced

import torch


class Zero1:
    def __init__(self, units, make):
        self.units = units
        self.optimizer = make([unit.shard for unit in units])

    def step(self):
        for unit in self.units:
            unit.shard.grad = torch.empty_like(unit.shard)
            unit.shard.grad.copy_(unit.whole_gradient().chunk(unit.group.size)[unit.group.rank])
        self.optimizer.step()
        for unit in self.units:
            unit.group.all_gather(unit.full, unit.shard.data)
            for parameter in [unit.shard, *unit.parameters]:
                parameter.grad = None
