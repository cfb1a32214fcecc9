"""A token for each of many requests, each by its own parameters and its own generator.

Shapes: B requests  V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor


class Asking(Protocol):
    """temperature 0: the likeliest; top_k, top_p None: no cut."""

    temperature: float
    top_k: int | None
    top_p: float | None
    generator: torch.Generator


def sample(logits: Tensor, requests: Sequence[Asking]) -> list[int]:
    """logits (B, V), request b asks for a token of row b."""
    tokens = []
    for row, request in zip(logits, requests):
        if request.temperature == 0:
            tokens.append(int(row.argmax()))
            continue
        ordered, order = (row / request.temperature).sort(descending=True)  # (V,)
        p = ordered[: request.top_k].softmax(dim=0)  # (k,)
        if request.top_p is not None:
            p = p * (p.cumsum(0) - p < request.top_p)  # the likelier ones do not reach it yet
        tokens.append(int(order[torch.multinomial(p, 1, generator=request.generator)]))
    return tokens
