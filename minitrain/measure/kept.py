"""Bytes that one call saves for its backward, as autograd keeps them: each storage counted once.

    y, nbytes = kept_for_backward(layer, x, but=layer.parameters())

`memory.py` follows a whole step through time; this measures one call, without other overhead.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks


def kept_for_backward(
    function: Callable[..., Any], *inputs: Any, but: Iterable[Any] = ()
) -> tuple[Any, int]:
    """`function(*inputs)`, and the bytes that its graph keeps besides the tensors in `but`.

    `but` lists what exists anyway, such as weights; its non-tensors are ignored.
    """
    kept: dict[int, int] = {}

    def note(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with saved_tensors_hooks(note, lambda tensor: tensor):
        out = function(*inputs)
    for tensor in but:
        if isinstance(tensor, Tensor):
            kept.pop(tensor.untyped_storage().data_ptr(), None)
    return out, sum(kept.values())
