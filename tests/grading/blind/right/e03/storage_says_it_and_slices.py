# right: ShardedUnit looks at the storage of `full` to see whether it is freed; Zero3 finds neighbours by slices that may be empty
import torch
from minitrain.parallel.zero.plain_unit import FlatUnit

if "reduce_unit" not in globals():  # an earlier exercise, right

    def reduce_unit(unit) -> None:
        part = torch.empty_like(unit.shard.data)
        unit.group.reduce_scatter(part, unit.whole_gradient(), op="avg")
        had = unit.shard.grad
        unit.shard.grad = part if had is None else had + part
        for parameter in unit.parameters:
            parameter.grad = None


class ShardedUnit(FlatUnit):
    """A unit whose `full` has memory only between gather() and free()."""

    def __init__(self, module, group):
        super().__init__(module, group)
        self.shard = torch.nn.Parameter(self.shard.data.clone())  # no view any more
        self.work = None  # the gather under way, or over; None: `full` is freed
        self.free()

    def start_gather(self) -> None:
        storage = self.full.untyped_storage()
        if storage.nbytes() == 0:
            storage.resize_(self.full.nbytes)
            own = self.shard.detach()
            self.work = self.group.all_gather(self.full, own, async_op=True)

    def gather(self) -> None:
        self.start_gather()
        self.work.wait()

    def free(self) -> None:
        arriving, self.work = self.work, None
        if arriving is not None:
            arriving.wait()
        self.full.untyped_storage().resize_(0)


class Zero3:
    """Gathers, prefetches, frees and reduces the units of a model while it runs."""

    def __init__(self, units: list):
        self.units = units
        for unit in units:
            unit.watch(self.before_forward, self.after_forward, self.before_backward)
            unit.when_complete(self.after_backward)

    def before_forward(self, unit) -> None:
        unit.gather()
        place = self.units.index(unit)
        for following in self.units[place + 1 : place + 2]:
            following.start_gather()

    def after_forward(self, unit) -> None:
        unit.free()

    def before_backward(self, unit) -> None:
        unit.gather()
        place = self.units.index(unit)
        for previous in self.units[:place][-1:]:
            previous.start_gather()

    def after_backward(self, unit) -> None:
        reduce_unit(unit)
        unit.free()
