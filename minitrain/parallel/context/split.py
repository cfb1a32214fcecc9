"""Which rank holds which tokens, where a sequence is cut over ranks, and how much it has to read.

Causality makes late tokens expensive: token i reads i + 1 keys. Cut in N, the last rank has nearly
twice the mean to do. Zig-zag cuts in 2N and gives each rank an early and a late chunk, so that all
do the same, and in every step of a ring as well:

    contiguous, N = 2    0 0 | 1 1       rank 0 reads 1+2, rank 1 reads 3+4 (chunks of keys)
    zigzag               0 | 1 | 1 | 0   rank 0 reads 1+4, rank 1 reads 2+3

Targets are cut as they are: they were shifted when the text was whole. Shifting a cut text instead
gives the last token of every chunk a wrong target, or none.
Paper: Llama 3, arXiv 2407.21783, section 3.3.2. Lab: e02e. Shapes: B batch  T tokens  N ranks.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from minitrain.data.loader import Batch
from minitrain.errors import InputError, unknown_name

ORDERS = ("zigzag", "contiguous")


def chunks_of(rank: int, size: int, order: str = "zigzag") -> list[int]:
    """The chunks that a rank holds, of 2N in zig-zag and N in contiguous order."""
    if order not in ORDERS:
        raise unknown_name("order of a sequence", order, ORDERS)
    return [rank, 2 * size - 1 - rank] if order == "zigzag" else [rank]


def split_tensor(
    whole: Tensor, rank: int, size: int, order: str = "zigzag", dim: int = 1
) -> Tensor:
    """(…, T, …) -> (…, T/N, …): this rank's chunks of `dim`, side by side."""
    mine = chunks_of(rank, size, order)
    pieces = _cut(whole, len(mine) * size, dim)
    return torch.cat([pieces[chunk] for chunk in mine], dim)


def join_tensors(parts: Sequence[Tensor], order: str = "zigzag", dim: int = 1) -> Tensor:
    """The inverse: all ranks' parts, in rank order, as the sequence they were cut from."""
    whole: dict[int, Tensor] = {}
    for rank, part in enumerate(parts):
        mine = chunks_of(rank, len(parts), order)
        whole.update(zip(mine, _cut(part, len(mine), dim)))
    return torch.cat([whole[chunk] for chunk in sorted(whole)], dim)


def split_sequence(batch: Batch, rank: int, size: int, order: str = "zigzag") -> Batch:
    """Whole rows -> this rank's T/N tokens of each, with their targets, documents, positions."""
    fields = (batch.tokens, batch.targets, batch.documents, batch.positions)
    return Batch(*(split_tensor(tensor, rank, size, order) for tensor in fields))


def join_sequence(parts: Sequence[Batch], order: str = "zigzag") -> Batch:
    """The inverse of `split_sequence`."""
    names = ("tokens", "targets", "documents", "positions")
    return Batch(*(join_tensors([getattr(part, n) for part in parts], order) for n in names))


def ring_work(size: int, length: int, order: str = "zigzag") -> list[list[int]]:
    """[step][rank]: how many (query, key) pairs a rank computes in each step of a causal ring."""
    chunk = length // len(chunks_of(0, size, order)) // size

    def pairs(a: int, b: int) -> int:
        return chunk * (chunk + 1) // 2 if a == b else chunk * chunk * (b < a)

    return [
        [
            sum(
                pairs(a, b)
                for a in chunks_of(rank, size, order)
                for b in chunks_of((rank - step) % size, size, order)
            )
            for rank in range(size)
        ]
        for step in range(size)
    ]


def imbalance(work: list[list[int]]) -> float:
    """Each step lasts as long as its busiest rank: this, over an even share. 1 is perfect."""
    return sum(map(max, work)) * len(work[0]) / sum(map(sum, work))


def _cut(tensor: Tensor, pieces: int, dim: int) -> tuple[Tensor, ...]:
    length = tensor.shape[dim]
    if length % pieces:
        near = [n for n in (length - length % pieces, length - length % pieces + pieces) if n]
        raise InputError(
            f"a sequence of {length} tokens cannot be cut into {pieces} equal chunks: "
            f"use {' or '.join(map(str, near))} tokens"
        )
    return tensor.chunk(pieces, dim)
