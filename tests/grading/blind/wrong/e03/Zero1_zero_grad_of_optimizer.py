# exercise: Zero1
# says: after step() parameters still have a gradient
# Ends with the optimizer's zero_grad, which knows the shards alone: the parameters keep their
# gradients and the next backward adds to them.

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
            unit.group.all_gather(unit.full, unit.shard.data)
        self.optimizer.zero_grad()
