"""ZeRO stage 3: between uses, no rank holds a unit's whole parameters.

    compute  |- forward 1 -|- forward 2 -| … |- backward 2 -|- backward 1 -|
    link     |- gather 2 -|- gather 3 -|     |- gather 1 -||- reduce 2 -||- reduce 1 -|
    full     1 2            2 3              2 1            1

A unit is gathered before its forward and freed after it, gathered again before its backward, and
freed when the next unit's begins; that one, predicted from the last step, is already in flight.
The last unit of the forward is the first of the backward, and stays. Held: 16 P/N and at most two
units; sent: at most 3(N-1)/N·P elements a step, half as much again as DDP's 2.
Recomputation gathers again by itself: with `use_reentrant=False` the gradient of a unit's output
arrives before its saved tensors are used. Every rank must run the same units in one order.
Papers: Rajbhandari et al. 2020; Zhao et al. 2023, "PyTorch FSDP". Lab: e03.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map_only

from minitrain.errors import InputError
from minitrain.parallel.ddp import broadcast_parameters
from minitrain.parallel.zero.guards import not_wrapped
from minitrain.parallel.zero.sharded import Sharded
from minitrain.parallel.zero.unit import Unit
from minitrain.ranks.group import Group


class Zero3(Sharded):
    """`units` are modules (default: `blocks_of(model)`); the root's unit has all else.

    The root's unit, which includes what several units use (tied weights), stays gathered from the
    start of the forward to the end of the backward. Shards are float32 or wider; modules compute in
    `compute_dtype`, gradients are sent and summed in `reduce_dtype`. Before wrapping, freeze what
    no forward uses, or AdamW decays it (`Sharded` says why).
    """

    def __init__(
        self,
        model: nn.Module,
        group: Group,
        units: Sequence[nn.Module] | None = None,
        compute_dtype: torch.dtype | None = None,
        reduce_dtype: torch.dtype | None = None,
        prefetch: bool = True,
    ) -> None:
        not_wrapped(model)
        modules = blocks_of(model) if units is None else modules_in(model, units)
        broadcast_parameters(group, model)
        self.units_of = {
            module: [Unit(alike, group, 3, compute_dtype, reduce_dtype) for alike in parameters]
            for module, parameters in split(model, modules).items()
        }
        super().__init__(model, group, [u for units in self.units_of.values() for u in units], 3)
        self.prefetch, self.compute_dtype = prefetch, compute_dtype
        self.next = dict(zip([None, *modules], [*modules, None]))  # None: the start, the end
        self.last: nn.Module | None = None  # called last in this forward
        self.trail: list[nn.Module] = []  # called, with their backward pending
        self.open: nn.Module | None = None  # in its backward
        for module in modules:
            module.register_forward_pre_hook(self._before_forward)
            module.register_forward_hook(self._after_forward)

    def forward(self, *inputs: Any, **named_inputs: Any) -> Any:
        if self.compute_dtype is not None:
            cast = partial(_cast, dtype=self.compute_dtype)
            inputs, named_inputs = tree_map_only(Tensor, cast, (inputs, named_inputs))
        if self.held:
            return super().forward(*inputs, **named_inputs)
        self._gather(self.module)
        self._follow(None)
        out = super().forward(*inputs, **named_inputs)
        self.next[self.last] = None
        if torch.is_grad_enabled():
            self.order = self._order()
        else:
            self._free(*self.units_of)
        _when_a_gradient_comes(out, self._before_roots_backward)
        return out

    def finish(self) -> None:
        super().finish()
        self._free(*self.units_of)
        self.trail, self.open = [], None

    # ---- forward ----

    def _before_forward(self, module: nn.Module, inputs: tuple) -> None:
        if self.held:
            return
        self._gather(module)
        if self.in_backward:  # a recomputation: what follows is not a forward
            return
        self.next[self.last] = module
        self._follow(module)
        if torch.is_grad_enabled():
            self.trail.append(module)

    def _follow(self, module: nn.Module | None) -> None:
        """Prefetches the unit that came after this one in the last step."""
        self.last = module
        self._prefetch(self.next.get(module))

    def _after_forward(self, module: nn.Module, inputs: tuple, out: Any) -> None:
        if self.held:
            return
        is_first_backwards = self.next.get(module) is None and torch.is_grad_enabled()
        if module is not self.open and not is_first_backwards:
            self._free(module)
        if not self.in_backward:
            _when_a_gradient_comes(out, partial(self._before_backward, module))

    # ---- backward ----

    def _before_roots_backward(self, gradient: Tensor) -> None:
        """Gathers the root's unit for a second backward; after a forward it is still there."""
        self._begin_backward()
        self._gather(self.module)

    def _before_backward(self, module: nn.Module, gradient: Tensor) -> None:
        """Runs once an output's gradient is known: this unit's nodes come next, none of the last.

        Autograd runs the newest nodes first, so the unit open until now has none left.
        """
        self._begin_backward()
        if module is self.open:
            return
        if self.open is not None:
            self._free(self.open)
        self._gather(module)
        self.open = module
        while self.trail and self.trail.pop() is not module:
            pass
        if not any(unit.trains for unit in self.units_of[module]):
            self._prefetch(*self.trail[-1:])

    def _accumulated(self, parameter: nn.Parameter) -> None:
        """A unit's first gradient sends the previous unit's; at half of them the next is fetched.

        Fetching at the first raises the peak by 6% (bench zero, 1M; 3% at 10M), as activations are
        still held; at the last it saves no memory, and nothing is left to hide it behind.
        """
        unit = self.unit_of[parameter]
        if self.issued and len(unit.missing) == len(unit.places):
            self.order[self.issued - 1].finish_reduce()
        if len(unit.missing) == (len(unit.places) + 1) // 2:
            self._prefetch(*self.trail[-1:])
        super()._accumulated(parameter)

    def _order(self) -> list[Unit]:
        """The units in order of reduction: as their backwards end, the root's last."""
        modules = dict.fromkeys([*self.trail[::-1], self.module, *self.units_of])
        return [unit for module in modules for unit in self.units_of[module] if unit.trains]

    # ---- units of modules ----

    def _gather(self, module: nn.Module) -> None:
        for unit in self.units_of[module]:
            unit.gather()

    def _prefetch(self, module: nn.Module | None = None) -> None:
        for unit in self.units_of.get(module, ()) if self.prefetch else ():
            unit.start_gather()

    def _free(self, *modules: nn.Module) -> None:
        for module in modules if not self.held else ():
            for unit in self.units_of[module]:
                unit.free()


def modules_in(model: nn.Module, units: Sequence[nn.Module]) -> list[nn.Module]:
    """`units`, each once; raises InputError if one is not a module of the model."""
    inside = set(model.modules())
    for unit in units:
        if unit not in inside:
            raise InputError(
                f"units has {unit!r}, which is no module of this {type(model).__name__}: give the "
                "modules themselves, units=[model.first, …]"
            )
    return list(dict.fromkeys(units))


def blocks_of(model: nn.Module) -> list[nn.Module]:
    """The layers in the model's outermost module lists, which FSDP2's users wrap by hand.

    ModuleLists, or else Sequentials; each of their modules that has parameters.
    """
    for kind in (nn.ModuleList, nn.Sequential):
        lists = [module for module in model.modules() if isinstance(module, kind)]
        inner = {inside for outer in lists for inside in outer.modules() if inside is not outer}
        blocks = [block for outer in lists if outer not in inner for block in outer]
        blocks = [block for block in blocks if next(block.parameters(), None) is not None]
        if blocks:
            return blocks
    raise InputError(
        f"{type(model).__name__} has no ModuleList and no Sequential whose layers could be "
        "gathered one after the other: name them, Zero3(model, group, units=[model.first, …])"
    )


def split(
    model: nn.Module, modules: Sequence[nn.Module]
) -> dict[nn.Module, list[dict[str, nn.Parameter]]]:
    """For each module and for the root: its parameters by name, one dictionary per kind.

    A parameter also used outside its module goes to the root.
    """
    home: dict[nn.Module, nn.Module] = {}
    for unit in modules:
        for module in unit.modules():
            if home.setdefault(module, unit) is not unit:
                name = type(module).__name__
                raise InputError(f"{name} is in two units: give units that do not overlap")
    users: dict[nn.Parameter, set[nn.Module]] = defaultdict(set)
    for module in model.modules():
        for parameter in module.parameters(recurse=False):
            users[parameter].add(home.get(module, model))
    alike: dict[nn.Module, dict] = {module: defaultdict(dict) for module in (*modules, model)}
    for name, parameter in model.named_parameters():
        owner = next(iter(users[parameter])) if len(users[parameter]) == 1 else model
        alike[owner][parameter.requires_grad, parameter.dtype][name] = parameter
    return {module: list(kinds.values()) for module, kinds in alike.items()}


def _when_a_gradient_comes(out: Any, action: Callable[[Tensor], None]) -> None:
    """Calls `action` with each output's gradient, before that output's own backward runs."""
    for tensor in tree_leaves(out):
        if isinstance(tensor, Tensor) and tensor.requires_grad:
            tensor.register_hook(action)


def _cast(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    return tensor.to(dtype) if tensor.is_floating_point() else tensor
