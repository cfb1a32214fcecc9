"""Numbers as whole codes over the range of those that they share it with; lab e08 has the rest."""

from __future__ import annotations

import torch
from torch import Tensor

Codes = tuple[Tensor, Tensor, Tensor]


def to_codes(x: Tensor, dim: int, bits: int) -> Codes:
    """-> codes uint8 like x; step and lowest value float32, with size 1 along `dim`: what lies
    along it shares one range."""
    low, high = x.amin(dim, keepdim=True), x.amax(dim, keepdim=True)
    step = (high - low) / (2**bits - 1)
    codes = ((x - low) / step.clamp(min=torch.finfo(x.dtype).tiny)).round()
    return codes.to(torch.uint8), step, low


def from_codes(codes: Tensor, step: Tensor, low: Tensor) -> Tensor:
    return codes * step + low
