# right: Zero1 and reduce_unit take the sum of the ranks and divide it by N; reduce_unit adds in place
import torch


class Zero1:
    """Parameters and gradients on every rank, optimizer state of the own shards only."""

    def __init__(self, units: list, make):
        self.units = units
        self.optimizer = make([unit.shard for unit in units])

    def step(self) -> None:
        for unit in self.units:
            whole, own = unit.whole_gradient(), unit.shard.data
            mean = own.new_empty(own.shape)
            unit.group.reduce_scatter(mean, whole)
            unit.shard.grad = mean.div_(whole.numel() // own.numel())
            for p in unit.parameters:
                p.grad = None
        self.optimizer.step()
        for unit in self.units:
            unit.shard.grad = None
            unit.group.all_gather(unit.full, unit.shard.detach())


def reduce_unit(unit) -> None:
    whole = unit.whole_gradient()
    for p in unit.parameters:
        p.grad = None
    part = torch.zeros(unit.shard.shape, dtype=whole.dtype, device=whole.device)
    unit.group.reduce_scatter(part, whole)
    part /= whole.numel() // part.numel()
    if unit.shard.grad is None:
        unit.shard.grad = part
    else:
        unit.shard.grad.add_(part)
