# right: Zero1 has one optimizer a unit and takes unit after unit (reduce, update, gather); reduce_unit frees the parameters' gradients before it sends, and adds in place.
import torch


class Zero1:
    """Parameters and gradients on every rank, optimizer state of the own shards only."""

    def __init__(self, units: list, make):
        self.units = units
        self.optimizers = [make([unit.shard]) for unit in units]

    def step(self) -> None:
        for unit, optimizer in zip(self.units, self.optimizers):
            whole = unit.whole_gradient()
            for parameter in unit.parameters:
                parameter.grad = None
            mean = torch.zeros_like(unit.shard.data)
            unit.group.reduce_scatter(mean, whole, op="avg")
            unit.shard.grad = mean
            optimizer.step()
            unit.shard.grad = None
            unit.group.all_gather(unit.full, unit.shard.detach().clone())


def reduce_unit(unit) -> None:
    whole = unit.whole_gradient()
    for parameter in unit.parameters:
        parameter.grad = None
    own = unit.shard
    mean = torch.zeros(own.shape, dtype=own.dtype, device=own.device)
    unit.group.reduce_scatter(mean, whole, op="avg")
    if own.grad is None:
        own.grad = mean
    else:
        own.grad.add_(mean)
