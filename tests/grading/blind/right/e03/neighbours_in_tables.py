# right: Zero3 looks its neighbours up in two tables made once; ShardedUnit has a helper for its memory, and drops the work before it waits for it.
import torch
from minitrain.parallel.zero.plain_unit import FlatUnit


def keep_own_part(unit) -> None:
    """As `reduce_unit` of exercise 2."""
    part = torch.empty_like(unit.shard.data)
    unit.group.reduce_scatter(part, unit.whole_gradient(), op="avg")
    for parameter in unit.parameters:
        parameter.grad = None
    unit.shard.grad = part if unit.shard.grad is None else part + unit.shard.grad


class ShardedUnit(FlatUnit):
    """A unit whose `full` has memory only between gather() and free()."""

    def __init__(self, module, group):
        super().__init__(module, group)
        self.shard = torch.nn.Parameter(self.shard.data.clone())  # no view any more
        self.work = None  # the gather under way, or over; None: `full` is freed
        self.free()

    def give_memory(self, elements) -> None:
        self.full.untyped_storage().resize_(elements * self.full.element_size())

    def start_gather(self) -> None:
        if self.work is not None:
            return
        self.give_memory(self.full.numel())
        self.work = self.group.all_gather(
            self.full, self.shard.detach(), async_op=True
        )

    def gather(self) -> None:
        if self.work is None:
            self.start_gather()
        self.work.wait()

    def free(self) -> None:
        work, self.work = self.work, None
        if work is not None:
            work.wait()
        self.give_memory(0)


class Zero3:
    """Gathers, prefetches, frees and reduces the units of a model while it runs."""

    def __init__(self, units: list):
        self.units = units
        pairs = list(zip(units, units[1:]))
        self.follower = {id(one): other for one, other in pairs}
        self.leader = {id(other): one for one, other in pairs}
        for unit in units:
            unit.watch(self.before_forward, self.after_forward, self.before_backward)
            unit.when_complete(self.after_backward)

    def compute(self, unit, neighbour) -> None:
        unit.gather()
        if neighbour is not None:
            neighbour.start_gather()

    def before_forward(self, unit) -> None:
        self.compute(unit, self.follower.get(id(unit)))

    def after_forward(self, unit) -> None:
        unit.free()

    def before_backward(self, unit) -> None:
        self.compute(unit, self.leader.get(id(unit)))

    def after_backward(self, unit) -> None:
        keep_own_part(unit)
        unit.free()
