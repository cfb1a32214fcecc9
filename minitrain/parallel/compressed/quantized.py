"""The mean of gradients in 8 to 1 bits.

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
from torch import Tensor
from torch.nn import functional as F

from minitrain.parallel.compressed.bits import Blocks
from minitrain.parallel.compressed.hook import Compressor, ErrorFeedback, Then
from minitrain.parallel.ddp import Pending
from minitrain.ranks.group import Group


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
