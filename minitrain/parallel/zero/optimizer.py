"""The optimizer of ZeRO: each rank keeps the state of its own pieces, 1/N of it, and moves those.

    for unit in units:  [fetch the next unit's state]  step | gather the unit | [put its state away]

One unit after the other, so that only one unit's gradients are in float32 at a time, a unit's
parameters travel while the next is updated, and with a `store` only two units' state is in memory:
AdamW's 8 P/N bytes become 2/n of that, n units. Where there is nothing of that (stage 3, gradients
in float32, no store) one step moves all. Papers: ZeRO; "ZeRO-Offload" (Ren et al. 2021). Lab: e03.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor, nn

from minitrain.errors import InputError, unknown_name
from minitrain.memory.optimizer_offload import Mover, Shelf, in_turn, state_of
from minitrain.memory.stores import Store
from minitrain.parallel.zero.stages_1_2 import Sharded
from minitrain.parallel.zero.unit import Unit

Make = Callable[[list[dict]], torch.optim.Optimizer]
OFFLOADABLE = {"gradients": 2, "parameters": 3}  # from which stage on a rank has only its part


class ZeroOptimizer:
    """An optimizer over this rank's pieces: `make(groups)` builds it, `groups` name the model's.

        optimizer = ZeroOptimizer(zero, parameter_groups(model, 0.1), partial(AdamW, lr=1e-3))

    store: where its state waits for its turn, and what `also` names with it: "gradients" (stages 2
    and 3), "parameters" (stage 3). `inner` is the optimizer that was made.
    """

    def __init__(
        self,
        zero: Sharded,
        groups: Sequence[dict],
        make: Make,
        store: Store | None = None,
        also: Sequence[str] = (),
    ) -> None:
        elementwise_only(make)
        self.zero = zero
        pieces = {
            p: unit.pieces[name].weight
            for unit in zero.trained
            for name, p in unit.parameters.items()
            if name in unit.pieces
        }
        self.inner = make(
            [{**g, "params": [pieces[p] for p in g["params"] if p in pieces]} for g in groups]
        )
        self.param_groups, self.state = self.inner.param_groups, self.inner.state
        self.shelves: list[Shelf] = []  # of each unit's state, where it is offloaded
        if store is not None:
            self._offload(Mover(store), also)

    def step(self) -> None:
        units = self.zero.trained
        for unit in units:
            unit.hide_gradient()
        for turn, following in self._turns():
            for unit in turn:
                unit.arrive()
            for unit in following:
                unit.fetch()
            for unit in turn:
                unit.show_gradient()
            self.inner.step()
            for unit in turn:
                unit.hide_gradient()
                unit.depart()
                self.zero.updated(unit)
        for unit in units:
            if self.zero.stage < 3:
                unit.gather()

    def zero_grad(self, set_to_none: bool = True) -> None:
        self.zero.zero_grad(set_to_none)

    def arrive(self) -> None:
        """All state and all shards are in memory; what is in the store is put there again later."""
        for shelf in self.shelves:
            shelf.get()
        for unit in self.zero.trained:
            unit.shard_shelf.get()

    def _turns(self) -> Iterator[tuple[list[Unit], list[Unit]]]:
        """Which units move together, and whose turn is next: that of all where nothing travels."""
        units = self.zero.trained
        same = all(unit.reduce_dtype == unit.shard.dtype for unit in units)
        if self.zero.stage == 3 and same and not self.shelves:
            yield units, []
            return

        def state(i: int) -> list[Tensor]:
            return state_of(self.inner, [piece.weight for piece in units[i].pieces.values()])

        for i in in_turn(self.shelves, state) if self.shelves else range(len(units)):
            yield units[i : i + 1], units[i + 1 : i + 2]

    def _offload(self, mover: Mover, also: Sequence[str]) -> None:
        for name in also:
            if name not in OFFLOADABLE:
                raise unknown_name("thing to offload beside the state", name, OFFLOADABLE)
            stage, needed = self.zero.stage, OFFLOADABLE[name]
            if stage < needed:
                raise InputError(f"stage {stage} keeps all {name}: offload them in stage {needed}")
        for number, unit in enumerate(self.zero.trained):
            self.shelves.append(Shelf(mover, f"unit-{number}.state"))
            if "gradients" in also:
                unit.gradient_shelf = Shelf(mover, f"unit-{number}.gradient")
            if "parameters" in also:
                unit.shard_shelf = Shelf(mover, f"unit-{number}.shard")
                unit.shard_shelf.put([unit.shard])


def elementwise_only(make: Callable[[list[dict]], torch.optim.Optimizer]) -> None:
    """InputError unless the optimizer moves a matrix as it moves the same numbers cut in two.

    Adafactor's rows and columns, or Muon's matrix, are not there in a shard, and no error says so.
    """
    generator = torch.Generator().manual_seed(0)
    matrix, gradient = torch.randn(2, 8, 8, generator=generator)
    whole, parts = nn.Parameter(matrix.clone()), [nn.Parameter(p) for p in matrix.view(2, 32)]
    whole.grad = gradient
    for part, grad in zip(parts, gradient.view(2, 32)):
        part.grad = grad
    try:
        make([{"params": [whole]}]).step()
        make([{"params": parts}]).step()
        same = torch.allclose(whole.flatten(), torch.cat(parts), rtol=1e-4, atol=1e-6)
    except ValueError:  # Muon says that it takes matrices only
        same = False
    if not same:
        raise InputError(
            "this optimizer needs whole matrices and a shard has none: use an element-wise one "
            "(AdamW, SGD, Lion), or DDP"
        )
