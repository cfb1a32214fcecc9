"""Gradients in 8 to 1 bits, with a scale for each block of numbers.

A sum of int8 codes is no int8 code. In a ring every hop adds to what it received, and would have
to quantize the partial sum again, N-1 times; so a compressed all-reduce leaves the ring:

    at each hop     q(q(q(x0) + x1) + x2) …       partial sums grow, and so do their errors
    once            all-to-all of q(x) · sum in float32 · q(sum) · all-gather

Cost of either: 2(N-1)/N · (bits/8 + 4/block) P bytes a rank, a quarter of float32's at 8 bits. A
number is off by half a step at most: max|x| of its block / (2 · 127). One bit: the sign, times the
block's mean magnitude; its error is large, so it needs the residual on both sides of the sum.
Papers: ZeRO++ (qgZ), Wang et al. 2023 (arXiv:2306.10209); 1-bit: Seide et al. 2014.
Lab: e02g_slow_networks. P parameters, N ranks, R rows.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field

import torch
from einops import rearrange
from torch import Tensor
from torch.nn import functional as F

from minitrain.errors import InputError, check_whole
from minitrain.parallel.compressed.hook import Compressor, ErrorFeedback, Then
from minitrain.parallel.ddp import Pending
from minitrain.ranks.group import Group

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


def all_reduce_at_each_hop(group: Group, vector: Tensor, form: Blocks) -> Tensor:
    """Naive: the ring's all-reduce, with every partial sum quantized before it is sent.

    Returns the mean, (P,): the same number of bytes as below, and a larger error.
    """
    rank, ranks = group.rank, group.size
    chunks = rows_of(vector, form, ranks).clone()  # (N, n)
    right, left = (rank + 1) % ranks, (rank - 1) % ranks
    for step in range(ranks - 1):
        leaving = form.encode(chunks[(rank - 1 - step) % ranks][None])
        arrived = group.exchange(leaving, right, torch.empty_like(leaving), left)
        chunks[(rank - 2 - step) % ranks] += form.decode(arrived)[0]
    own = form.encode(chunks[rank][None] / ranks)
    everyone = group.all_gather(own.new_empty(ranks, own.shape[1]), own)
    return form.decode(everyone).flatten()[: vector.numel()].to(vector.dtype)


def rows_of(vector: Tensor, form: Blocks, ranks: int) -> Tensor:
    """(P,) -> (N, n) float32, padded by zeros: row r is the part that rank r sums up."""
    size = form.padded(vector.numel(), ranks)
    return F.pad(vector.float(), (0, size - vector.numel())).view(ranks, -1)


@dataclass
class Quantized(Compressor):
    """The mean of numbers quantized once, and quantized once more after the sum.

    `feedback`: this rank keeps what it left out of its own vector, and of the part it summed up.
    """

    bits: int = 8
    block: int = 256
    feedback: bool = False
    sent: ErrorFeedback = field(default_factory=ErrorFeedback)
    summed: ErrorFeedback = field(default_factory=ErrorFeedback)

    def __post_init__(self) -> None:
        self.form = Blocks(self.bits, self.block)

    def start(self, group: Group, key: Hashable, vector: Tensor) -> Pending:
        rows = rows_of(vector, self.form, group.size)
        message = self._encode(self.sent, key, rows)
        work = group.all_to_all(torch.empty_like(message), message, async_op=True)

        def finish() -> Tensor:
            mean = self.form.decode(work.wait()).mean(dim=0, keepdim=True)  # (1, n)
            own = self._encode(self.summed, key, mean)
            everyone = group.all_gather(own.new_empty(group.size, own.shape[1]), own)
            return self.form.decode(everyone).flatten()[: vector.numel()].to(vector.dtype)

        return Then(finish)

    def _encode(self, memory: ErrorFeedback, key: Hashable, rows: Tensor) -> Tensor:
        if not self.feedback:
            return self.form.encode(rows)
        wanted = memory.add(key, rows)
        message = self.form.encode(wanted)
        memory.keep(key, wanted, self.form.decode(message))
        return message
