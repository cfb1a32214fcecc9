# exercise: Zero1
# says: Give `make` the shards
# The optimizer is made of every unit's whole `full`, so each rank keeps all moments; the class
# promises "optimizer state of the own shards only", and "let each rank update its shard only".

import torch


class Zero1:
    """Parameters and gradients on every rank, optimizer state of the own shards only."""

    def __init__(self, units: list, make):
        self.units = units
        self.wholes = [torch.nn.Parameter(unit.full) for unit in units]
        self.optimizer = make(self.wholes)

    def step(self) -> None:
        for unit, whole in zip(self.units, self.wholes):
            unit.shard.grad = torch.empty_like(unit.shard)
            unit.group.reduce_scatter(unit.shard.grad, unit.whole_gradient(), op="avg")
            whole.grad = torch.empty_like(whole)
            unit.group.all_gather(whole.grad, unit.shard.grad)
        self.optimizer.step()
        for unit, whole in zip(self.units, self.wholes):
            whole.grad = None
            unit.shard.grad = None
            for parameter in unit.parameters:
                parameter.grad = None
