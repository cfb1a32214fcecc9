"""ZeRO stage 3: between its uses, a unit's parameters are nowhere whole.

    compute  |- forward 1 -|- forward 2 -| … |- backward 2 -|- backward 1 -|
    link     |- gather 2 -|- gather 3 -|     |- gather 1 -||- reduce 2 -||- reduce 1 -|
    full     1 2            2 3              2 1            1

A unit is gathered before its forward and freed after it, gathered again before its backward, and
freed when nothing of its backward is left; the next one, in the order of the last step, is already
on its way. Held: 16 P/N and at most two units; sent: 3(N-1)/N·P elements a step, DDP's 2 and half.
Recomputation gathers again by itself: with `use_reentrant=False` the gradient of a unit's output
comes before what the unit saved is asked for. Every rank must run the same units in one order.
Papers: Rajbhandari et al. 2020; Zhao et al. 2023, "PyTorch FSDP". Lab: e03.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map_only

from minitrain.errors import InputError
from minitrain.parallel.ddp import broadcast_parameters
from minitrain.parallel.flat import Unit
from minitrain.parallel.group import Group
from minitrain.parallel.zero import Sharded


class Zero3(Sharded):
    """`units` are modules (default: `model.blocks`); what they have not, the root's unit has.

    The root's unit, and with it what several units use (tied weights), is there from the start of
    the forward to the end of the backward. Shards are float32 or wider; `compute_dtype` is what
    the modules see, `reduce_dtype` how gradients travel and add up.
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
        broadcast_parameters(group, model)
        modules = list(dict.fromkeys(getattr(model, "blocks", ()) if units is None else units))
        units_of = {
            module: [Unit(alike, group, compute_dtype, reduce_dtype) for alike in parameters]
            for module, parameters in split(model, modules).items()
        }
        super().__init__(model, group, [unit for units in units_of.values() for unit in units])
        self.units_of, self.prefetch, self.compute_dtype = units_of, prefetch, compute_dtype
        self.module_of = {unit: module for module, units in units_of.items() for unit in units}
        self.expected = modules  # whose turn it is: the calls of the last forward, in order
        self.calls: list[nn.Module] = []  # those of this forward
        self.trail: list[nn.Module] = []  # those whose backward is still to come
        self.open: set[nn.Module] = set()  # modules in their backward
        self.passed: set[nn.Module] = set()  # those of them whose inputs have their gradients
        for module in modules:
            module.register_forward_pre_hook(self._before_forward, with_kwargs=True)
            module.register_forward_hook(self._after_forward)

    def forward(self, *inputs: Any, **named_inputs: Any) -> Any:
        if self.compute_dtype is not None:
            cast = partial(_cast, dtype=self.compute_dtype)
            inputs, named_inputs = tree_map_only(Tensor, cast, (inputs, named_inputs))
        self.calls = []
        self._gather(self.module)
        out = super().forward(*inputs, **named_inputs)
        self.expected = self.calls
        if torch.is_grad_enabled():
            self.order = self._order()
        else:
            self._free(self.units_of)
        return out

    def finish(self) -> None:
        super().finish()
        self._free(self.units_of)
        self.trail = []
        self.open.clear()

    # ---- forward ----

    def _before_forward(self, module: nn.Module, inputs: tuple, named_inputs: dict) -> Any:
        self._gather(module)
        if self.in_backward:  # a recomputation: what follows is not a forward
            return None
        self.calls.append(module)
        place = len(self.calls)
        if self.expected[place - 1 : place] == [module]:
            self._prefetch(self.expected[place : place + 1])
        if not torch.is_grad_enabled():
            return None
        self.trail.append(module)
        return self._watched(module, inputs, named_inputs)

    def _watched(self, module: nn.Module, inputs: tuple, named_inputs: dict) -> Any:
        """The inputs, through an identity: its backward says that they have their gradients."""
        tensors = [t for t in tree_leaves((inputs, named_inputs)) if _has_gradient(t)]
        if not tensors:
            return None
        through = iter(_Entrance.apply(partial(self._inputs_done, module), *tensors))
        return tree_map_only(
            Tensor, lambda t: next(through) if _has_gradient(t) else t, (inputs, named_inputs)
        )

    def _after_forward(self, module: nn.Module, inputs: tuple, out: Any) -> None:
        if module not in self.open:
            self._free([module])
        if not self.in_backward:
            for tensor in filter(_has_gradient, tree_leaves(out)):
                tensor.register_hook(partial(self._before_backward, module))

    # ---- backward ----

    def _before_backward(self, module: nn.Module, gradient: Tensor) -> None:
        """The gradient of an output is there; the unit's own nodes come next."""
        self._begin_backward()
        self._gather(module)
        self.open.add(module)
        self.passed.discard(module)
        while self.trail and self.trail.pop() is not module:
            pass
        self._prefetch(self.trail[-1:])

    def _inputs_done(self, module: nn.Module) -> None:
        self.passed.add(module)
        self._free_if_done(module)

    def _accumulated(self, parameter: nn.Parameter) -> None:
        unit = self.unit_of[parameter]
        if unit.gradients is None and self.issued:  # room for its own, now that the last are sent
            self.order[self.issued - 1].finish_reduce()
        super()._accumulated(parameter)
        self._free_if_done(self.module_of[unit])

    def _free_if_done(self, module: nn.Module) -> None:
        """Inputs and parameters have their gradients: no node of the unit is left to run."""
        if module in self.passed and not any(unit.missing for unit in self.units_of[module]):
            self.open.discard(module)
            self._free([module])

    def _order(self) -> list[Unit]:
        """In which units are reduced: as their backwards end, the root's after the called ones."""
        called = list(dict.fromkeys(self.trail))[::-1]
        modules = dict.fromkeys([*called, self.module, *self.units_of])
        return [unit for module in modules for unit in self.units_of[module] if unit.trains]

    # ---- units of modules ----

    def _gather(self, module: nn.Module) -> None:
        for unit in self.units_of[module]:
            unit.gather()

    def _prefetch(self, modules: Iterable[nn.Module]) -> None:
        for module in modules if self.prefetch else ():
            for unit in self.units_of[module]:
                unit.start_gather()

    def _free(self, modules: Iterable[nn.Module]) -> None:
        for module in modules:
            for unit in self.units_of[module]:
                unit.free()


class _Entrance(torch.autograd.Function):
    """The identity on a unit's inputs; `done()` is called when their gradients are there."""

    @staticmethod
    def forward(ctx: Any, done: Callable[[], None], *tensors: Tensor) -> tuple[Tensor, ...]:
        ctx.done = done
        return tensors

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        ctx.done()
        return None, *gradients


def split(
    model: nn.Module, modules: Sequence[nn.Module]
) -> dict[nn.Module, list[dict[str, nn.Parameter]]]:
    """For each module and for the root: its parameters by name, those alike in one dictionary.

    A parameter that is used outside its module too is the root's.
    """
    home: dict[nn.Module, nn.Module] = {}
    for unit in modules:
        for module in unit.modules():
            if module in home:
                raise InputError(
                    f"{type(module).__name__} is in two units: give units that do not overlap"
                )
            home[module] = unit
    users: dict[nn.Parameter, set[nn.Module]] = {}
    for module in model.modules():
        for parameter in module.parameters(recurse=False):
            users.setdefault(parameter, set()).add(home.get(module, model))
    alike: dict[nn.Module, dict[tuple, dict[str, nn.Parameter]]] = {
        m: {} for m in (*modules, model)
    }
    for name, parameter in model.named_parameters():
        owner = next(iter(users[parameter])) if len(users[parameter]) == 1 else model
        kind = (parameter.requires_grad, parameter.dtype)
        alike[owner].setdefault(kind, {})[name] = parameter
    return {module: list(kinds.values()) for module, kinds in alike.items()}


def _has_gradient(value: Any) -> bool:
    return isinstance(value, Tensor) and value.requires_grad


def _cast(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    return tensor.to(dtype) if tensor.is_floating_point() else tensor
