"""torch's optimizers on the pieces of ZeRO: what must happen around a step that is not ours.

    optimizer = torch.optim.AdamW(zero.parameters(), lr=1e-3)
    loss.backward()     every piece's `.grad` is there
    optimizer.step()    before: is it one that can be right?    after: stages 1 and 2 gather

An optimizer of the model's own parameters, which have no gradients, moves nothing and says nothing;
one that needs whole matrices moves wrongly. torch calls two hooks around every `step` of every
optimizer: there both are told, and the ranks send each other what has moved.
"""

from __future__ import annotations

import weakref
from collections import OrderedDict, defaultdict
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from minitrain.errors import InputError
from minitrain.parallel.zero.sharded import Sharded


class OptimizerWatch:
    """Follows the optimizers of one wrapped model, for as long as that lives."""

    def __init__(self, zero: Sharded) -> None:
        self._zero = weakref.ref(zero)
        self.own: weakref.WeakSet = weakref.WeakSet()  # ours, which do all of this themselves
        self._checked: weakref.WeakSet = weakref.WeakSet()
        for register, called in (
            (register_optimizer_step_pre_hook, OptimizerWatch._before),
            (register_optimizer_step_post_hook, OptimizerWatch._after),
        ):
            handle = register(partial(_call, called, weakref.ref(self)))
            weakref.finalize(self, handle.remove)

    def _before(self, zero: Sharded, optimizer: torch.optim.Optimizer) -> None:
        parameters = _parameters(optimizer)
        if not parameters.isdisjoint(zero.piece_of):
            raise InputError(
                f"this {type(optimizer).__name__} has the model's own parameters, whose gradients "
                "ZeRO takes away: build it after wrapping, on zero.parameters()"
            )
        if parameters.isdisjoint(zero.piece_of.values()):
            return
        zero.check_step()
        if optimizer not in self._checked:
            elementwise_only(partial(_twin, optimizer), zero.group.device)
            self._checked.add(optimizer)

    def _after(self, zero: Sharded, optimizer: torch.optim.Optimizer) -> None:
        moved = _parameters(optimizer)
        for unit in zero.trained:
            if any(piece.weight in moved for piece in unit.pieces.values()):
                zero.updated(unit)
        zero.settle()


def _call(called: Callable, reference: weakref.ref, optimizer: Any, *_: Any) -> None:
    watch = reference()
    zero = watch and watch._zero()
    if zero is not None and optimizer not in watch.own:
        called(watch, zero, optimizer)


def _parameters(optimizer: torch.optim.Optimizer) -> set[nn.Parameter]:
    return {parameter for group in optimizer.param_groups for parameter in group["params"]}


def elementwise_only(
    make: Callable[[list[dict]], torch.optim.Optimizer], device: torch.device | None = None
) -> None:
    """InputError unless the optimizer moves a matrix as it moves the same numbers cut in two.

    Adafactor's rows and columns, or Muon's matrix, are not there in a shard, and no error says so.
    """
    generator = torch.Generator().manual_seed(0)
    matrix, gradient = torch.randn(2, 8, 8, generator=generator).to(device)
    whole = nn.Parameter(matrix.clone())
    parts = [nn.Parameter(part.clone()) for part in matrix.view(2, 1, 32)]
    whole.grad = gradient
    for part, grad in zip(parts, gradient.view(2, 1, 32)):
        part.grad = grad
    try:
        make([{"params": [whole]}]).step()
        make([{"params": parts}]).step()
        same = torch.allclose(whole.flatten(), torch.cat(parts).flatten(), rtol=1e-4, atol=1e-6)
    except (TypeError, ValueError):  # LBFGS asks for a closure, Muon for matrices
        same = False
    if not same:
        raise InputError(
            "this optimizer needs whole matrices and a shard has none: use an element-wise one "
            "(AdamW, SGD, Lion), or DDP"
        )


def _twin(optimizer: torch.optim.Optimizer, groups: list[dict]) -> torch.optim.Optimizer:
    """The same rule, new, over other parameters, and with a rate that moves them."""
    twin = object.__new__(type(optimizer))
    settings = {**optimizer.defaults, "lr": 0.01}
    twin.__dict__.update(
        {name: value for name, value in vars(optimizer).items() if name != "step"},  # a scheduler's
        param_groups=[{**settings, **group} for group in groups],
        state=defaultdict(dict),
        _optimizer_step_pre_hooks=OrderedDict(),
        _optimizer_step_post_hooks=OrderedDict(),
    )
    return twin
