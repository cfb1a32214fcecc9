"""Numbers in 8 to 1 bits, with a scale for each block of them, as messages of bytes.

A number is off by half a step at most, max|x| of its block / (2 · (2^(bits-1) - 1)). With one bit
it is its sign times the block's mean magnitude: of all scales the one of least squared error.
Cost: bits/8 + 4/block bytes a number. Paper: Seide et al. 2014 (one bit). Lab:
e02g_slow_networks. R rows  n numbers in each.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from einops import rearrange
from torch import Tensor

from minitrain.errors import InputError, check_whole

SCALE_BYTES = 4  # a float32 for each block


@dataclass(frozen=True)
class Blocks:
    """A format: `bits` for each number, a float32 scale for each `block` of them."""

    bits: int = 8
    block: int = 256

    def __post_init__(self) -> None:
        check_whole("block", self.block)
        if self.bits not in (1, 2, 4, 8) or self.block % 8:
            raise InputError(
                f"bits={self.bits}, block={self.block}: use 1, 2, 4 or 8 bits, and a block that "
                "is a multiple of 8, so that codes fill bytes"
            )

    def padded(self, length: int, parts: int = 1) -> int:
        """The next length that `parts` equal rows of whole blocks have."""
        return -(-length // (parts * self.block)) * parts * self.block

    def encode(self, rows: Tensor) -> Tensor:
        """(R, n), n whole blocks -> messages (R, bytes) uint8: all codes, then all scales."""
        blocks = rearrange(rows.float(), "r (b w) -> r b w", w=self.block)
        if self.bits == 1:
            scales = blocks.abs().mean(dim=2)  # (R, n / block)
            codes = (blocks >= 0).int()
        else:
            largest = 2 ** (self.bits - 1) - 1
            scales = blocks.abs().amax(dim=2) / largest
            steps = scales.clamp(min=torch.finfo(torch.float32).tiny)
            codes = (blocks / steps[..., None]).round().int() + largest
        codes = packed(rearrange(codes, "r b w -> r (b w)"), self.bits)
        return torch.cat([codes, scales.contiguous().view(torch.uint8)], dim=1)

    def decode(self, messages: Tensor) -> Tensor:
        """(R, bytes) -> (R, n) float32"""
        blocks = messages.shape[1] // (self.block * self.bits // 8 + SCALE_BYTES)
        codes, scales = messages.split(
            [messages.shape[1] - blocks * SCALE_BYTES, blocks * SCALE_BYTES], dim=1
        )
        scales = scales.flatten().clone().view(torch.float32)  # of a copy, which is aligned
        scales = scales.view(-1, blocks)  # (R, n / block)
        codes = unpacked(codes, self.bits)
        codes = 2 * codes - 1 if self.bits == 1 else codes - (2 ** (self.bits - 1) - 1)
        numbers = rearrange(codes, "r (b w) -> r b w", w=self.block) * scales[..., None]
        return rearrange(numbers, "r b w -> r (b w)")


def packed(codes: Tensor, bits: int) -> Tensor:
    """(R, n) codes from 0 to 2^bits - 1 -> (R, n · bits / 8) uint8, the first code lowest."""
    shifts = torch.arange(0, 8, bits, device=codes.device)
    groups = rearrange(codes, "r (n w) -> r n w", w=len(shifts))
    return (groups << shifts).sum(dim=2).to(torch.uint8)


def unpacked(data: Tensor, bits: int) -> Tensor:
    """(R, bytes) uint8 -> (R, n) int32"""
    shifts = torch.arange(0, 8, bits, device=data.device)
    codes = (data[..., None].int() >> shifts) & (2**bits - 1)
    return rearrange(codes, "r n w -> r (n w)").int()
