# right: reduce_unit adds the old gradient into the new part and clears parameters first; ShardedUnit asks the storage whether `full` is there; Zero3 finds both neighbours by zip, and frees before it reduces
import torch
from minitrain.parallel.zero.plain_unit import FlatUnit


def reduce_unit(unit) -> None:
    whole = unit.whole_gradient()
    for parameter in unit.parameters:
        parameter.grad = None
    fresh = unit.shard.data.new_zeros(unit.shard.shape)
    unit.group.reduce_scatter(fresh, whole, op="avg")
    if unit.shard.grad is not None:
        fresh.add_(unit.shard.grad)
    unit.shard.grad = fresh


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
            storage.resize_(self.full.numel() * self.full.element_size())
            self.work = self.group.all_gather(self.full, self.shard.data, async_op=True)

    def gather(self) -> None:
        self.start_gather()
        self.work.wait()

    def free(self) -> None:
        if self.work is not None:
            self.work.wait()
            self.work = None
        self.full.untyped_storage().resize_(0)


class Zero3:
    """Gathers, prefetches, frees and reduces the units of a model while it runs."""

    def __init__(self, units: list):
        self.units = units
        for unit in units:
            unit.watch(self.before_forward, self.after_forward, self.before_backward)
            unit.when_complete(self.after_backward)

    def neighbours(self, unit):
        """(the one before, the one after), None where there is none."""
        earlier, later = [None, *self.units[:-1]], [*self.units[1:], None]
        for before, own, after in zip(earlier, self.units, later):
            if own is unit:
                return before, after

    def begin(self, unit, ahead):
        unit.gather()
        if ahead is not None:
            ahead.start_gather()

    def before_forward(self, unit) -> None:
        self.begin(unit, self.neighbours(unit)[1])

    def after_forward(self, unit) -> None:
        unit.free()

    def before_backward(self, unit) -> None:
        self.begin(unit, self.neighbours(unit)[0])

    def after_backward(self, unit) -> None:
        unit.free()  # gradients do not lie in `full`
        reduce_unit(unit)
