# right: Zero1 sums and divides, clears parameters' gradients before the update and gathers in reverse order; ShardedUnit swaps the work out first; offloaded_step is a context manager around step()
from contextlib import contextmanager

import torch
from minitrain.parallel.zero.plain_unit import FlatUnit


class Zero1:
    def __init__(self, units: list, make):
        self.units = units
        self.updater = make([unit.shard for unit in units])

    def step(self) -> None:
        for unit in self.units:
            part = torch.zeros_like(unit.shard.data)
            unit.group.reduce_scatter(part, unit.whole_gradient())  # the sum
            unit.shard.grad = part.div_(unit.full.numel() // part.numel())
            for parameter in unit.parameters:
                parameter.grad = None
        self.updater.step()
        for unit in reversed(self.units):
            unit.shard.grad = None
            unit.group.all_gather(unit.full, unit.shard.detach())


class ShardedUnit(FlatUnit):
    """A unit whose `full` has memory only between gather() and free()."""

    def __init__(self, module, group):
        super().__init__(module, group)
        self.shard = torch.nn.Parameter(self.shard.data.clone())  # no view any more
        self.work = None  # the gather under way, or over; None: `full` is freed
        self.free()

    def start_gather(self) -> None:
        if self.work is not None:
            return
        self.full.untyped_storage().resize_(self.full.nbytes)
        self.work = self.group.all_gather(self.full, self.shard.detach(), async_op=True)

    def gather(self) -> None:
        if self.work is None:
            self.start_gather()
        self.work.wait()

    def free(self) -> None:
        work, self.work = self.work, None
        if work is not None:
            work.wait()
        self.full.untyped_storage().resize_(0)


def state_tensors(optimizer):
    """Every tensor of its state, in a fixed order; [] before the first step."""
    return [t for state in optimizer.state.values() for t in state.values()]


@contextmanager
def state_in_memory(optimizer, store, key):
    known = state_tensors(optimizer)
    for tensor in known:
        tensor.untyped_storage().resize_(tensor.nbytes)
    if known:
        store.read(key, known)
    yield
    held = state_tensors(optimizer)  # the first step has made it
    if held:
        store.write(key, held)
    while held:
        held.pop().untyped_storage().resize_(0)


def offloaded_step(optimizers: list, store) -> None:
    for place in range(len(optimizers)):
        with state_in_memory(optimizers[place], store, f"optimizer-{place}"):
            optimizers[place].step()
    store.commit()
