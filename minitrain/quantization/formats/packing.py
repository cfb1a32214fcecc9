"""Codes of 8, 4, 3 or 2 bits side by side in bytes, the first in the highest bits.

    4 bits   aaaabbbb                      byte >> 4 is the first code, as in bitsandbytes
    2 bits   aabbccdd
    3 bits   aaabbbcc cdddeeef ffggghhh    eight codes fill three bytes

Cost: ⌈n·bits / 8⌉ bytes for n codes, rounded up to 3 for 3 bits.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

WIDTHS = (2, 3, 4, 8)


def pack(codes: Tensor, bits: int) -> Tensor:
    """codes uint8, each under 2^bits, of any shape -> bytes (n,) uint8."""
    assert bits in WIDTHS, f"codes of {bits} bits"
    shifts, size, dtype = _layout(bits)
    codes = F.pad(codes.flatten(), (0, -codes.numel() % len(shifts)))
    units = codes.to(dtype).unflatten(0, (-1, len(shifts))) << codes.new_tensor(shifts, dtype=dtype)
    words = units.sum(dim=1, dtype=dtype)  # no two codes share a bit
    return torch.stack([(words >> 8 * i) & 255 for i in reversed(range(size))], 1).byte().flatten()


def unpack(held: Tensor, bits: int, count: int) -> Tensor:
    """bytes -> the first `count` codes (count,) uint8."""
    assert bits in WIDTHS, f"codes of {bits} bits"
    shifts, size, dtype = _layout(bits)
    parts = held.unflatten(0, (-1, size)).to(dtype)  # (units, size)
    word = parts[:, 0]
    for i in range(1, size):
        word = (word << 8) | parts[:, i]
    codes = (word.unsqueeze(1) >> held.new_tensor(shifts, dtype=dtype)) & (2**bits - 1)
    return codes.byte().flatten()[:count]


def _layout(bits: int) -> tuple[list[int], int, torch.dtype]:
    """Positions of the codes in a unit, the unit's bytes, and the integer type that holds it
    meanwhile."""
    size = 3 if bits == 3 else 1
    return list(range(8 * size - bits, -1, -bits)), size, torch.uint8 if size == 1 else torch.int32
