# exercise: Zero1
# one optimizer a unit, and every unit is reduced, updated and gathered before the next;
# reduce_unit sums and divides by N, and adds in place
import torch


class Zero1:
    """Whole parameters and gradients, optimizer state of own shards only."""

    def __init__(self, units: list, make):
        self.units = units
        self.optimizers = [make([unit.shard]) for unit in units]

    def step(self) -> None:
        for unit, optimizer in zip(self.units, self.optimizers):
            whole = unit.whole_gradient()
            for parameter in unit.parameters:
                parameter.grad = None
            unit.shard.grad = whole.new_empty(unit.shard.shape)
            unit.group.reduce_scatter(unit.shard.grad, whole, op="avg")
            del whole
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            unit.group.all_gather(unit.full, unit.shard.detach())


def reduce_unit(unit) -> None:
    ranks = unit.full.numel() // unit.shard.numel()
    if unit.shard.grad is None:
        unit.shard.grad = torch.zeros_like(unit.shard.data)
    part = torch.empty_like(unit.shard.grad)
    unit.group.reduce_scatter(part, unit.whole_gradient())
    unit.shard.grad.add_(part.div_(ranks))
    for parameter in unit.parameters:
        parameter.grad = None
