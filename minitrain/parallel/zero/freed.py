"""The placeholder that stage 3 leaves for a freed weight: shape and dtype are known, values are not
here.

Reading memory that was given back crashes, or computes with whatever lies there by now. While a
unit is freed, its parameters are of this class, which answers what needs no memory and refuses the
rest (`__torch_function__` is asked before anything runs). While gathered they are `WholeWeight`s
(wrapped.py), so an operation of a forward costs nothing more.
"""

from __future__ import annotations

from collections.abc import Iterable
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
