"""A weight of a wrapped model while it is whole: a parameter like any other, but without `.grad`.

Its gradient goes to the pieces as soon as backward has made it. A reader would find None, and
`clip_grad_norm_` of torch or the model's own `zero_grad`, which both begin with a look at `.grad`,
would do nothing and not say so. Operations see a plain parameter (torch's own does without
`__torch_function__` too), so a forward costs nothing more.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from minitrain.errors import InputError
from minitrain.parallel.zero.freed import FreedWeight


def _read(parameter: nn.Parameter) -> Tensor | None:
    """Reads the gradient where subclasses have no say (`gradient_of`, a memory budget)."""
    if not torch._C._is_torch_function_enabled():
        return Tensor.grad.__get__(parameter)  # type: ignore[attr-defined]
    raise InputError(
        "the parameters of a wrapped model have no .grad, their pieces have: clip with "
        "zero.clip_grad_norm_(max_norm), clear with optimizer.zero_grad() or zero.zero_grad(), "
        "look at full_gradients(zero), and call .to() before you wrap"
    )


def _write(parameter: nn.Parameter, gradient: Tensor | None) -> None:
    Tensor.grad.__set__(parameter, gradient)  # type: ignore[attr-defined]


class WholeWeight(nn.Parameter):
    """A parameter whose `.grad` is not for users; ZeRO itself reads it by `gradient_of`."""

    __torch_function__ = torch._C._disabled_torch_function_impl
    grad = property(_read, _write)

    def __deepcopy__(self, memo: dict[int, Any]) -> nn.Parameter:
        """A copy belongs to no wrapper."""
        memo[id(self)] = nn.Parameter(self.detach().clone(), self.requires_grad)
        return memo[id(self)]


def gradient_of(parameter: nn.Parameter) -> Tensor | None:
    """`.grad`, also of a freed weight: a unit's last gradient may come after its memory went."""
    with torch._C.DisableTorchFunctionSubclass():
        return parameter.grad


def not_wrapped(model: nn.Module) -> None:
    """InputError where a wrapper has this model, or a part of it, already."""
    if any(isinstance(p, (WholeWeight, FreedWeight)) for p in model.parameters()):
        raise InputError("this model is wrapped already: build it anew, or use the first wrapper")
