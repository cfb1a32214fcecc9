"""The gradient of a piece: one rank's part, whose norm torch would take for the model's.

`clip_grad_norm_` of torch reads each `.grad` by itself, and so clips every rank by another factor.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from minitrain.errors import InputError

NORMS = {
    torch.linalg.vector_norm,
    torch.linalg.norm,
    torch.norm,
    Tensor.norm,
    torch._foreach_norm,
}


class ShardedGradient(Tensor):
    """The `.grad` of a piece: a tensor like any other, but for the norm that it has not got."""

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
