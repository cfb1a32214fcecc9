"""Attention to n learned tokens before the text: it reads them all, and stands n places later.

    mask, prefix   (T, n+T)      0 0 | \ -          0 reads, - does not, \ causal
                                 0 0 | 0 \
    mask, prompt   (n+T, n+T)    the same, and above it the rows of the n tokens themselves

A model's slot `look_around` makes positions and mask; `Shifted` takes its place and calls it.
Every document that is packed into a row reads the learned tokens, and so does a token whose window
they are outside of. Shapes: B batch  T tokens  n learned tokens.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from minitrain.errors import InputError
from minitrain.model.attention.grouped_query import causal_mask
from minitrain.model.rope import Rotation, document_positions


class Switch(Protocol):
    enabled: bool


class Shifted:
    """`inner`, for n learned tokens that are in the keys only (a prefix) or in x too (a prompt).

    They are there while `switch.enabled` is true.
    """

    def __init__(
        self,
        inner: Callable[..., tuple[Rotation, Any]],
        count: int,
        in_stream: bool,
        switch: Switch,
    ) -> None:
        self.inner, self.count, self.in_stream = inner, count, in_stream
        self.switch = switch

    def __call__(
        self, x: Tensor, documents: Tensor | None = None, positions: Tensor | None = None
    ) -> tuple[Rotation, Tensor]:
        """x (B, T, D), or (B, n+T, D) where they are in the stream; documents, positions (B, T)."""
        if not self.switch.enabled:
            return self.inner(x, documents, positions)
        n = self.count
        text = x[:, n:] if self.in_stream else x  # (B, T, D)
        if positions is None and documents is not None:
            positions = document_positions(documents)  # (B, T)
        elif positions is None:
            positions = torch.arange(text.shape[1], device=x.device)  # (T,)
        _, mask = self.inner(text, documents, positions)
        mask = _with_columns(mask, text, n)  # (..., T, n+T)
        places = positions + n
        if self.in_stream:
            mask = _with_rows(mask, n)  # (..., n+T, n+T)
            first = torch.arange(n, device=x.device).expand(*places.shape[:-1], n)
            places = torch.cat((first, places), dim=-1)  # (n+T,) or (B, n+T)
        turns, _ = self.inner(text, None, places)  # the rotation of other places; its mask is none
        return turns, mask


def _with_columns(mask: Any, text: Tensor, count: int) -> Tensor:
    """mask (..., T, T), None for causal -> (..., T, n+T), the first n free to read."""
    if mask is None:
        mask = causal_mask(text[:, None])  # (T, T)
    if not isinstance(mask, Tensor):
        raise InputError(
            f"learned tokens need a mask of numbers, and this attention's is {type(mask).__name__}:"
            " exchange_attention(model, attention, attention_mask) before adapt(...)"
        )
    return F.pad(mask, (count, 0))


def _with_rows(mask: Tensor, count: int) -> Tensor:
    """mask (..., T, n+T) -> (..., n+T, n+T): the learned tokens read one another, causally."""
    own = mask.new_full((count, mask.shape[-1]), -torch.inf).triu(1)  # (n, n+T)
    return torch.cat((own.expand(*mask.shape[:-2], *own.shape), mask), dim=-2)
