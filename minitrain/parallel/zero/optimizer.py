"""The optimizer of ZeRO: each rank keeps the state of its own pieces, 1/N of it, and updates those.

    for unit in units:  [fetch the next unit's state]  step | gather the unit | [put its state away]

Units are updated in turn, so that only one unit's gradients are in float32 at a time, a unit's
parameters are sent while the next is updated, and with a `store` only two units' state is in
memory: AdamW's 8 P/N bytes become 2/n of that, n units. If none of that applies (stage 3, float32
gradients, no store) one step updates all. Papers: ZeRO; "ZeRO-Offload" (Ren et al. 2021). Lab: e03.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from minitrain.errors import InputError, unknown_name
from minitrain.memory.optimizer_offload import Mover, Shelf, in_turn, state_of
from minitrain.memory.stores import Store
from minitrain.parallel.zero.guards import elementwise_only
from minitrain.parallel.zero.sharded import Sharded
from minitrain.parallel.zero.unit import Unit

Make = Callable[[list[dict]], torch.optim.Optimizer]
OFFLOADABLE = {"gradients": 2, "parameters": 3}  # stages from which a rank has only its own part


class ZeroOptimizer(torch.optim.Optimizer):
    """An optimizer over this rank's pieces: `make(groups)` builds it, `groups` list the model's
    parameters, or the pieces.

        optimizer = ZeroOptimizer(zero, parameter_groups(model, 0.1), partial(AdamW, lr=1e-3))

    store: where its state waits for its turn, along with `also`: "gradients" (stages 2 and 3),
    "parameters" (stage 3). `inner` is the optimizer that `make` returned.
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
        self.inner = make([self._of_pieces(group) for group in groups])
        super().__init__(self.inner.param_groups, self.inner.defaults)
        self._share()
        self.register_load_state_dict_pre_hook = self.inner.register_load_state_dict_pre_hook
        self.shelves: list[Shelf] = []  # each unit's state, if offloaded
        zero.own_optimizers.update((self, self.inner))
        for unit in zero.trained:
            unit.takes_turns = True
        if store is not None:
            self._offload(Mover(store), also)

    def add_param_group(self, param_group: dict) -> None:
        super().add_param_group(self._of_pieces(param_group))

    def state_dict(self) -> dict:
        """torch's own, of this rank's pieces; state.py has the form that other ranks can read."""
        self.arrive()
        return self.inner.state_dict()

    def load_state_dict(self, state_dict: dict) -> None:
        self.inner.load_state_dict(state_dict)
        self._share()

    def step(self, closure: Any = None) -> None:
        assert closure is None, "gradients come from backward() here, not from a closure"
        self.zero.check_step()
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
        self.zero.settle()

    def zero_grad(self, set_to_none: bool = True) -> None:
        self.zero.zero_grad(set_to_none)

    def arrive(self) -> None:
        """Brings all state and all shards into memory, until their next turn."""
        for shelf in self.shelves:
            shelf.get()
        for unit in self.zero.trained:
            unit.shard_shelf.get()

    def _share(self) -> None:
        """Shares groups and state with the inner optimizer, so that a scheduler sets its rate."""
        self.param_groups, self.state = self.inner.param_groups, self.inner.state

    def _of_pieces(self, group: dict) -> dict:
        piece_of = self.zero.piece_of
        return {**group, "params": [piece_of.get(p, p) for p in group["params"]]}

    def _turns(self) -> Iterator[tuple[list[Unit], list[Unit]]]:
        """Groups the units that are updated together, in order; one group if none is moved."""
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
