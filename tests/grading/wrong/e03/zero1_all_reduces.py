# exercise: Zero1
# says: of which it needs 1/N: reduce_scatter

import torch


class Zero1:
    def __init__(self, units, make):
        self.units = units
        self.optimizer = make([unit.shard for unit in units])

    def step(self):
        for unit in self.units:
            unit.shard.grad = torch.empty_like(unit.shard)
            whole = unit.group.all_reduce(unit.whole_gradient(), op="avg")
            unit.shard.grad.copy_(whole.chunk(unit.group.size)[unit.group.rank])
        self.optimizer.step()
        for unit in self.units:
            unit.group.all_gather(unit.full, unit.shard.data)
            for parameter in [unit.shard, *unit.parameters]:
                parameter.grad = None
