# a reader's own answers, from the notebook alone
import torch

from minitrain.parallel.zero.plain_unit import FlatUnit


class Zero1:
    """Whole parameters and gradients, optimizer state of own shards only."""

    def __init__(self, units: list, make):
        """`make(parameters)` gives an optimizer of these. 1 line."""
        self.units = units
        self.optimizer = make([unit.shard for unit in units])

    def step(self) -> None:
        """Average into each `unit.shard.grad`, update, gather each
        `unit.full`; then no gradient is left, neither a parameter's nor a
        shard's."""
        for unit in self.units:
            mine = torch.empty_like(unit.shard.data)
            unit.group.reduce_scatter(mine, unit.whole_gradient(), op="avg")
            unit.shard.grad = mine
            # the whole gradients are used up
            for p in unit.parameters:
                p.grad = None
        self.optimizer.step()
        for unit in self.units:
            unit.group.all_gather(unit.full, unit.shard.data)
            unit.shard.grad = None


def reduce_unit(unit) -> None:
    """Adds this rank's part of the averaged gradient to `unit.shard.grad`."""
    whole = unit.whole_gradient()
    part = torch.empty_like(unit.shard.data)
    unit.group.reduce_scatter(part, whole, op="avg")
    if unit.shard.grad is None:
        unit.shard.grad = part
    else:
        unit.shard.grad += part
    for parameter in unit.parameters:
        parameter.grad = None


class ShardedUnit(FlatUnit):
    """A unit whose `full` has memory only between gather() and free()."""

    def __init__(self, module, group):
        super().__init__(module, group)
        own = self.shard.data.clone()  # in memory of its own
        self.shard = torch.nn.Parameter(own)
        self.work = None  # of an all-gather
        self.free()

    def start_gather(self) -> None:
        """All shards are on their way into `full`; it does not wait."""
        # freed: None; arriving or there: the work
        if self.work is not None:
            return
        self.full.untyped_storage().resize_(self.full.nbytes)
        self.work = self.group.all_gather(
            self.full, self.shard.data, async_op=True
        )

    def gather(self) -> None:
        """`full` is there: waits for it, whoever began."""
        self.start_gather()
        self.work.wait()

    def free(self) -> None:
        """`full` has 0 bytes; nothing is still arriving in it."""
        if self.work is not None:
            self.work.wait()
            self.work = None
        self.full.untyped_storage().resize_(0)


class Zero3:
    """Gathers, prefetches, frees and reduces the units of a model."""

    def __init__(self, units: list):
        self.units = units
        for unit in units:
            unit.watch(
                self.before_forward,
                self.after_forward,
                self.before_backward,
            )
            unit.when_complete(self.after_backward)

    def before_forward(self, unit) -> None:
        """`unit` is there, the next one is on its way."""
        unit.gather()
        following = self.units.index(unit) + 1
        if following < len(self.units):
            self.units[following].start_gather()

    def after_forward(self, unit) -> None:
        """`unit` has 0 bytes until its backward."""
        unit.free()

    def before_backward(self, unit) -> None:
        """`unit` is there, the one before it is on its way."""
        unit.gather()
        place = self.units.index(unit)
        if place > 0:
            self.units[place - 1].start_gather()

    def after_backward(self, unit) -> None:
        """Only 1/N is left, of its gradients and of its parameters."""
        reduce_unit(unit)
        unit.free()


def offloaded_step(optimizers: list, store) -> None:
    """Steps each optimizer; outside its own turn its state has no memory."""
    for number, optimizer in enumerate(optimizers):
        key = f"unit-{number}"
        tensors = state_tensors(optimizer)
        for tensor in tensors:
            tensor.untyped_storage().resize_(tensor.nbytes)
        if tensors:  # else it was never written
            store.read(key, tensors)
        optimizer.step()
        # the first step made the state
        tensors = state_tensors(optimizer)
        if tensors:
            store.write(key, tensors)
        for tensor in tensors:
            tensor.untyped_storage().resize_(0)
    store.commit()
