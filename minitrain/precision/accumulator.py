"""Why FP8 matmuls are added up in two stages: the accumulator of the tensor cores is short.

Hopper's FP8 units add products in about 14 bits: each new term is shifted to the exponent of the
running sum, and what falls off its end is cut. The longer the sum, the more is cut, always towards
0. Every 128 products, DeepSeek-V3 moves the partial sum into a float32 register and starts anew.

    short     ((((p0 + p1) + p2) + p3) + … )        14 bits all the way: error grows with K
    promoted  (p0 + p1 + p2 + p3) -> float32 += …   14 bits over 128 products only

Emulated here, bit by bit of the description and slow; for K = 4096 it published errors near 2%.
Paper: DeepSeek-V3 (arXiv:2412.19437, 3.3.2 and 3.5.2). Lab: e04. Shapes: M, N rows  K summed.
"""

from __future__ import annotations

import torch
from torch import Tensor

INSTRUCTION = 32  # products that one FP8 instruction adds up exactly
ACCUMULATOR_BITS = 14


def cut(x: Tensor, bits: int) -> Tensor:
    """Keeps `bits` of each mantissa, and drops the rest towards 0."""
    fraction, exponent = torch.frexp(x)  # 1/2 <= |fraction| < 1
    return torch.ldexp(torch.ldexp(fraction, torch.tensor(bits)).trunc(), exponent - bits)


def short_matmul(
    a: Tensor, b: Tensor, promote_every: int | None = None, bits: int = ACCUMULATOR_BITS
) -> Tensor:
    """a (M, K), b (N, K) of FP8 numbers -> a b^T (M, N) with an accumulator of `bits`.

    `promote_every` K: the accumulator goes into the float32 sum, and begins at 0 again.
    """
    total = torch.zeros(a.shape[0], b.shape[0])
    accumulator = torch.zeros_like(total, dtype=torch.float64)
    for start in range(0, a.shape[1], INSTRUCTION):
        part = slice(start, start + INSTRUCTION)
        products = a[:, part].double() @ b[:, part].double().t()  # (M, N), exact
        accumulator = cut(accumulator + products, bits)
        if promote_every and (start + INSTRUCTION) % promote_every == 0:
            total += accumulator.float()
            accumulator.zero_()
    return total + accumulator.float()
