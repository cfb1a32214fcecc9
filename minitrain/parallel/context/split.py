"""A sequence cut over ranks for context parallelism: which rank holds which tokens.

Causality makes late tokens expensive: token i reads i + 1 keys. Cut in N, the last rank has nearly
twice the mean work. Zig-zag cuts in 2N and gives each rank an early and a late chunk, so that all
do the same work, in every step of a ring as well:

    contiguous, N = 2    0 0 | 1 1       rank 0 reads 1+2, rank 1 reads 3+4 (chunks of keys)
    zigzag               0 | 1 | 1 | 0   rank 0 reads 1+4, rank 1 reads 2+3

Targets are cut as they are, since they were shifted on the whole sequence. Shifting after the cut
would give the last token of every chunk a wrong target, or none.
Paper: Llama 3, arXiv 2407.21783, section 3.3.2. Lab: e02e. Shapes: B batch  T tokens  N ranks.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from minitrain.data.loader import Batch
from minitrain.errors import divide, unknown_name

ORDERS = ("zigzag", "contiguous")


def chunks_of(rank: int, size: int, order: str = "zigzag") -> list[int]:
    """The chunks that a rank holds, of 2N in zig-zag and N in contiguous order."""
    if order not in ORDERS:
        raise unknown_name("order of a sequence", order, ORDERS)
    return [rank, 2 * size - 1 - rank] if order == "zigzag" else [rank]


def chunk_slice(index: int, length: int) -> slice:
    """The tokens of chunk `index`, in chunks of `length` tokens."""
    return slice(index * length, (index + 1) * length)


def split_tensor(
    whole: Tensor, rank: int, size: int, order: str = "zigzag", dim: int = 1
) -> Tensor:
    """(…, T, …) -> (…, T/N, …): this rank's chunks of `dim`, side by side."""
    mine = chunks_of(rank, size, order)
    length = divide("tokens", whole.shape[dim], len(mine) * size, "chunks")
    pieces = whole.split(length, dim)
    return torch.cat([pieces[chunk] for chunk in mine], dim)


def join_tensors(parts: Sequence[Tensor], order: str = "zigzag", dim: int = 1) -> Tensor:
    """The inverse: all ranks' parts, in rank order, as the sequence they were cut from."""
    whole: dict[int, Tensor] = {}
    for rank, part in enumerate(parts):
        mine = chunks_of(rank, len(parts), order)
        whole.update(zip(mine, part.chunk(len(mine), dim)))
    return torch.cat([whole[chunk] for chunk in sorted(whole)], dim)


def split_sequence(batch: Batch, rank: int, size: int, order: str = "zigzag") -> Batch:
    """Whole rows -> this rank's T/N tokens of each, with their targets, documents, positions."""
    fields = (batch.tokens, batch.targets, batch.documents, batch.positions)
    return Batch(*(split_tensor(tensor, rank, size, order) for tensor in fields))
