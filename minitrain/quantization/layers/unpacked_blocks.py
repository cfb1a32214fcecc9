"""Many tokens (prefill): a packed weight is unpacked into bfloat16, a block of rows at a time.

    for each block of 512 rows:   codes -> bfloat16 W (512, D)    y[:, block] = x W^T

A packed kernel unpacks each weight again for every few tokens, so its seconds grow as T; here it is
unpacked once, and bfloat16's matrix units multiply. Into one buffer that all blocks share: 512·D
numbers, not F·D, and a fresh one for each block would cost more page faults than arithmetic.

What does not depend on the column leaves the weight: int8's scale multiplies y, and int4's shift a
group's sum of x. Cost: a pass over F·D codes for int8 (read 1 byte, write 2), five for int4, on top
of the plain matmul, however many the tokens.

Shapes: T tokens  D width in  F width out  g a group  h half a tile's rows.
"""

from __future__ import annotations

import torch
from einops import rearrange
from torch import Tensor

BLOCK = 512  # rows: half of it takes the same, all at once over three times as long at 16 tokens
TILES = (32, 16)  # h: torch's layout has tiles of 64 rows with AVX-512, of 32 without


def int8_product(x: Tensor, codes: Tensor, scale: Tensor) -> Tensor:
    """x (T, D) bfloat16, codes (F, D) int8, scale (F,) -> (T, F)"""
    y = x.new_empty(len(x), len(codes))
    buffer = x.new_empty(min(BLOCK, len(codes)), codes.shape[1])
    for columns, rows in zip(y.split(BLOCK, dim=1), codes.split(BLOCK)):
        weight = buffer[: len(rows)].copy_(rows)
        torch.mm(x, weight.t(), out=columns)
    return y.mul_(scale)


def tile_of(codes: Tensor, packed: Tensor) -> int | None:
    """h of the layout in which torch's kernel holds codes (F, D), or None where it is another.

    A tile of 2h rows is h bytes a column: row r in the lower four bits of byte r, row h + r in the
    upper. The layout is torch's own business, so it is compared, not assumed.
    """
    for half in TILES:
        if codes.shape[0] % (2 * half) == 0:
            lower, upper = rearrange(codes, "(n two h) d -> two n d h", two=2, h=half)
            if torch.equal(packed.flatten(), (lower | upper << 4).flatten()):
                return half
    return None


def int4_product(x: Tensor, packed: Tensor, scale_and_shift: Tensor, half: int) -> Tensor:
    """x (T, D) bfloat16, packed as `tile_of` says, scale_and_shift (D/g, F, 2) -> (T, F)"""
    groups, width, _ = scale_and_shift.shape
    scale, shift = scale_and_shift.unbind(dim=-1)  # (D/g, F)
    y = rearrange(x, "t (n g) -> t n g", n=groups).sum(dim=-1) @ shift  # (T, F)
    outputs = y.view(len(x), -1, 2, half)  # (T, F/2h, 2, h)
    scales = scale.view(groups, -1, 2, half)
    tiles = packed.view(width // (2 * half), x.shape[1], half)  # (F/2h, D, h)
    count = min(BLOCK // (2 * half), len(tiles))
    codes = packed.new_empty(x.shape[1] * count * half)
    weight = torch.empty_like(codes, dtype=x.dtype)
    for first in range(0, len(tiles), count):
        block = rearrange(tiles[first : first + count], "n d h -> d (n h)")  # bytes
        here = slice(first, first + count)
        for upper in (0, 1):
            w = _signed(block, upper, codes[: block.numel()], weight[: block.numel()])
            s = rearrange(scales[:, here, upper], "k n h -> k 1 (n h)")
            w.view(groups, -1, block.shape[1]).mul_(s / 16 if upper else s)
            outputs[:, here, upper] += rearrange(x @ w, "t (n h) -> t n h", h=half)
    return y


def _signed(block: Tensor, upper: int, codes: Tensor, out: Tensor) -> Tensor:
    """bytes (D, m) -> code - 8 of their lower four bits, or 16 times that of the upper; exact."""
    codes = torch.bitwise_and(block, 240 if upper else 15, out=codes.view(block.shape))
    codes.sub_(128 if upper else 8)
    return out.view(block.shape).copy_(codes.view(torch.int8))
