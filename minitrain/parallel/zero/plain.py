"""ZeRO as lab e03 writes it, on flat units: five ideas in a few lines each.

    Zero1            the optimizer has the shards only; reduce-scatter, step, all-gather
    reduce_unit      stage 2: keeps 1/N of a unit's gradients
    ShardedUnit      stage 3: gathers parameters before use and frees them after
    Zero3            when: the next unit is gathered while this one computes
    offloaded_step   optimizer state waits in a store for its unit's turn

One dtype, one parameter group, nothing frozen: `sharded.py`, `stage_3.py` and
`memory/optimizer_offload.py` handle the rest.
Paper: Rajbhandari et al. 2020, "ZeRO". Shapes: S elements of a unit  N ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from minitrain.memory.stores import Store
from minitrain.parallel.zero.plain_unit import FlatUnit
from minitrain.ranks.group import Group

Make = Callable[[list[nn.Parameter]], torch.optim.Optimizer]


class Zero1:
    """Every rank has all parameters and gradients, and the optimizer state of its own shards."""

    def __init__(self, units: Sequence[FlatUnit], make: Make) -> None:
        self.units = units
        self.optimizer = make([unit.shard for unit in units])

    def step(self) -> None:
        """Updates parameters from each rank's gradients, identically on all ranks; frees the
        gradients."""
        for unit in self.units:
            unit.shard.grad = torch.empty_like(unit.shard)  # (S/N,)
            unit.group.reduce_scatter(unit.shard.grad, unit.whole_gradient(), op="avg")
        self.optimizer.step()
        for unit in self.units:
            unit.group.all_gather(unit.full, unit.shard.data)  # (S,)
            for parameter in (unit.shard, *unit.parameters):
                parameter.grad = None


def reduce_unit(unit: FlatUnit) -> None:
    """Adds this rank's part of the average, (S/N,), to `shard.grad`; frees the whole gradients."""
    part = torch.empty_like(unit.shard.data)  # (S/N,)
    unit.group.reduce_scatter(part, unit.whole_gradient(), op="avg")
    unit.shard.grad = part if unit.shard.grad is None else unit.shard.grad + part
    for parameter in unit.parameters:
        parameter.grad = None


class ShardedUnit(FlatUnit):
    """A unit whose `full` has memory only between `gather` and `free`."""

    def __init__(self, module: nn.Module, group: Group) -> None:
        super().__init__(module, group)
        self.shard = nn.Parameter(self.shard.data.clone())  # (S/N,) no longer a view of full
        self.work = None  # the all-gather in flight, or done
        self.free()

    def start_gather(self) -> None:
        """Starts gathering the shards into `full`; does nothing if that is started or done."""
        if self.work is None:
            self.full.untyped_storage().resize_(self.full.nbytes)
            self.work = self.group.all_gather(self.full, self.shard.data, async_op=True)

    def gather(self) -> None:
        """Waits until the parameters can be used."""
        self.start_gather()
        self.work.wait()

    def free(self) -> None:
        """Releases the memory of `full`."""
        if self.work is not None:
            self.work.wait()  # used or not: what is still arriving needs its place
        self.work = None
        self.full.untyped_storage().resize_(0)


class Zero3:
    """Gathers and frees the units of a model, given in forward order."""

    def __init__(self, units: Sequence[ShardedUnit]) -> None:
        self.units = list(units)
        for unit in units:
            unit.watch(self.before_forward, self.after_forward, self.before_backward)
            unit.when_complete(self.after_backward)

    def before_forward(self, unit: ShardedUnit) -> None:
        unit.gather()
        place = self.units.index(unit)
        if place + 1 < len(self.units):
            self.units[place + 1].start_gather()

    def after_forward(self, unit: ShardedUnit) -> None:
        unit.free()

    def before_backward(self, unit: ShardedUnit) -> None:
        unit.gather()
        place = self.units.index(unit)
        if place > 0:
            self.units[place - 1].start_gather()

    def after_backward(self, unit: ShardedUnit) -> None:
        reduce_unit(unit)
        unit.free()


def offloaded_step(optimizers: Sequence[torch.optim.Optimizer], store: Store) -> None:
    """Each optimizer steps with its state in memory; before and after, the store holds it."""
    for number, optimizer in enumerate(optimizers):
        tensors = state_tensors(optimizer)
        for tensor in tensors:  # none before the first step
            tensor.untyped_storage().resize_(tensor.nbytes)
        if tensors:
            store.read(f"unit-{number}", tensors)
        optimizer.step()
        tensors = state_tensors(optimizer)
        store.write(f"unit-{number}", tensors)
        for tensor in tensors:
            tensor.untyped_storage().resize_(0)
    store.commit()


def state_tensors(optimizer: torch.optim.Optimizer) -> list[Tensor]:
    """Every tensor of the optimizer's state, in a fixed order."""
    return [t for state in optimizer.state.values() for t in state.values()]
