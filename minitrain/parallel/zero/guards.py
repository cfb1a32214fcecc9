"""Guards of a wrapped model: code that would train wrongly, or read freed memory, raises instead.

    FreedWeight       a weight of stage 3 between its uses: shape and dtype are known, values freed
    WholeWeight       a weight while gathered: its `.grad` went to the pieces, and would be None
    ShardedGradient   the `.grad` of a piece: one rank's part, whose norm is not the model's
    elementwise_only  refuses an optimizer that needs whole matrices and would update shards wrongly

Reading freed memory crashes, or computes with whatever is there by then, so `__torch_function__`
checks first. Gathered weights are `WholeWeight`s, for which torch's own function runs at once: an
operation of a forward costs nothing more.
"""

from __future__ import annotations

from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from minitrain.errors import InputError

ATTRIBUTES = ("shape", "dtype", "device", "layout", "ndim", "requires_grad", "is_leaf", "grad_fn")
METHODS = ("size", "dim", "numel", "stride", "element_size", "is_floating_point", "is_complex")
STORAGE = ("untyped_storage", "register_hook", "register_post_accumulate_grad_hook")
WITHOUT_NUMBERS = {
    *(getattr(Tensor, name).__get__ for name in (*ATTRIBUTES, "nbytes", "itemsize", "is_cuda")),
    *(getattr(Tensor, name) for name in (*METHODS, *STORAGE)),
    Tensor.grad.__set__,  # type: ignore[attr-defined]
}
NORMS = {
    torch.linalg.vector_norm,
    torch.linalg.norm,
    torch.norm,
    Tensor.norm,
    torch._foreach_norm,
}


class FreedWeight(nn.Parameter):
    """A parameter whose storage has 0 bytes."""

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Iterable[type], args: tuple = (), kwargs: dict | None = None
    ) -> Any:
        with torch._C.DisableTorchFunctionSubclass():
            if func in WITHOUT_NUMBERS:
                return func(*args, **(kwargs or {}))
            used = [x for x in tree_leaves((args, kwargs)) if isinstance(x, cls)]
            raise InputError(
                f"a weight of shape {list(used[0].shape)} is cut over the ranks, and whole only in "
                "the wrapper's forward and backward: call the wrapper and not the model, use it "
                "within `with zero.gathered():`, save it by `full_state_dict(zero)`, or give an "
                "optimizer `zero.parameters()`"
            )


class WholeWeight(nn.Parameter):
    """A parameter whose `.grad` users cannot read; ZeRO itself reads it with `gradient_of`."""

    __torch_function__ = torch._C._disabled_torch_function_impl

    @property
    def grad(self) -> Tensor | None:
        """The gradient, if subclass dispatch is off (`gradient_of`, a memory budget)."""
        if not torch._C._is_torch_function_enabled():
            return Tensor.grad.__get__(self)
        raise InputError(
            "the parameters of a wrapped model have no .grad, their pieces have: clip with "
            "zero.clip_grad_norm_(max_norm), clear with optimizer.zero_grad() or zero.zero_grad(), "
            "look at full_gradients(zero), and call .to() before you wrap"
        )

    @grad.setter
    def grad(self, gradient: Tensor | None) -> None:
        Tensor.grad.__set__(self, gradient)

    def __deepcopy__(self, memo: dict[int, Any]) -> nn.Parameter:
        """Copies to a parameter that belongs to no wrapper."""
        memo[id(self)] = nn.Parameter(self.detach().clone(), self.requires_grad)
        return memo[id(self)]


def gradient_of(parameter: nn.Parameter) -> Tensor | None:
    """`.grad`, even of a freed weight: a unit's last gradient may arrive after it was freed."""
    with torch._C.DisableTorchFunctionSubclass():
        return parameter.grad


def not_wrapped(model: nn.Module) -> None:
    """Raises InputError if this model, or a part of it, is already wrapped."""
    if any(isinstance(p, (WholeWeight, FreedWeight)) for p in model.parameters()):
        raise InputError("this model is wrapped already: build it anew, or use the first wrapper")
    if any(p.is_complex() for p in model.parameters()):
        raise InputError("ZeRO cuts real weights, and one is complex: use DDP, or view_as_real")


class ShardedGradient(Tensor):
    """The `.grad` of a piece: a tensor like any other, except that its norm is refused."""

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Iterable[type], args: tuple = (), kwargs: dict | None = None
    ) -> Any:
        if func in NORMS:
            raise InputError(
                "this gradient is one rank's part, and its norm not the model's: clip with "
                "zero.clip_grad_norm_(max_norm), which returns the norm over all ranks"
            )
        with torch._C.DisableTorchFunctionSubclass():
            return func(*args, **(kwargs or {}))


def elementwise_only(
    make: Callable[[list[dict]], torch.optim.Optimizer], device: torch.device | None = None
) -> None:
    """Raises InputError unless a matrix is updated as the same numbers cut in two are.

    A shard lacks Adafactor's rows and columns, or Muon's matrix, so these would fail silently.
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


def twin(optimizer: torch.optim.Optimizer, groups: list[dict]) -> torch.optim.Optimizer:
    """A fresh optimizer with the same rule over other parameters, and a nonzero learning rate."""
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
