# right: all five: Zero1 with one optimizer a unit, each unit through before the next; ShardedUnit with early returns; Zero3 with tables of neighbours made at the start; reduce_unit and offloaded_step with small helpers
import torch
from minitrain.parallel.zero.plain_unit import FlatUnit

if "state_tensors" not in globals():  # given in the notebook

    def state_tensors(optimizer):
        return [t for state in optimizer.state.values() for t in state.values()]


class Zero1:
    """Parameters and gradients on every rank, optimizer state of the own shards only."""

    def __init__(self, units: list, make):
        self.units = units
        self.optimizers = [make([unit.shard]) for unit in units]

    def step(self) -> None:
        for unit, optimizer in zip(self.units, self.optimizers):
            gradient = unit.full.new_empty(unit.shard.shape)
            unit.group.reduce_scatter(gradient, unit.whole_gradient(), op="avg")
            unit.shard.grad = gradient
            optimizer.step()
            for held in (unit.shard, *unit.parameters):
                held.grad = None
            unit.group.all_gather(unit.full, unit.shard.data)


def reduce_unit(unit) -> None:
    total = torch.empty(unit.shard.numel(), dtype=unit.shard.dtype)
    total = total.to(unit.shard.device)
    unit.group.reduce_scatter(total, unit.whole_gradient(), op="avg")
    if unit.shard.grad is not None:
        total += unit.shard.grad
    unit.shard.grad = total
    for p in unit.parameters:
        if p.grad is not None:
            p.grad = None


class ShardedUnit(FlatUnit):
    """A unit whose `full` has memory only between gather() and free()."""

    def __init__(self, module, group):
        super().__init__(module, group)
        self.shard = torch.nn.Parameter(self.shard.data.clone())  # no view any more
        self.work = None  # the gather under way, or over; None: `full` is freed
        self.free()

    def _resize(self, nbytes) -> None:
        self.full.untyped_storage().resize_(nbytes)

    def start_gather(self) -> None:
        if self.work is not None:
            return
        self._resize(self.full.nbytes)
        self.work = self.group.all_gather(self.full, self.shard.data, async_op=True)

    def gather(self) -> None:
        if self.work is None:
            self.start_gather()
        self.work.wait()

    def free(self) -> None:
        if self.work is not None:
            self.work.wait()
            self.work = None
        self._resize(0)


class Zero3:
    """Gathers, prefetches, frees and reduces the units of a model while it runs."""

    def __init__(self, units: list):
        self.units = units
        self._next = {id(a): b for a, b in zip(units, units[1:])}
        self._previous = {id(b): a for a, b in zip(units, units[1:])}
        for unit in units:
            unit.watch(self.before_forward, self.after_forward, self.before_backward)
            unit.when_complete(self.after_backward)

    def _there(self, unit, neighbour) -> None:
        unit.gather()
        if neighbour is not None:
            neighbour.start_gather()

    def before_forward(self, unit) -> None:
        self._there(unit, self._next.get(id(unit)))

    def after_forward(self, unit) -> None:
        unit.free()

    def before_backward(self, unit) -> None:
        self._there(unit, self._previous.get(id(unit)))

    def after_backward(self, unit) -> None:
        unit.free()
        reduce_unit(unit)


def offloaded_step(optimizers: list, store) -> None:
    def sized(tensors, full):
        for tensor in tensors:
            tensor.untyped_storage().resize_(tensor.nbytes if full else 0)
        return tensors

    for place, optimizer in enumerate(optimizers):
        key = f"optimizer-{place}"
        known = sized(state_tensors(optimizer), full=True)
        if len(known) > 0:
            store.read(key, known)
        optimizer.step()
        made = state_tensors(optimizer)
        if len(made) > 0:
            store.write(key, made)
            sized(made, full=False)
    store.commit()
