"""Context parallelism without a ring: gather all keys, or exchange tokens for heads (Ulysses).

Gathering, as Llama 3 did: one all-gather of keys and values before attention, one reduce-scatter of
their gradients after it, neither overlapped: (N-1)·S sent in each direction, N·S held, S =
2·B·K·T/N·C elements. With far fewer key/value than query heads S is small, and any mask is easy.

Ulysses: an all-to-all turns T/N tokens of all heads into all tokens of H/N heads, and back. In
between, attention is that of one process, and needs no zig-zag order for balance. It splits over
heads: N must divide H, and N divide K or K divide N. If K < N, each key/value head goes to the
N/K ranks whose query heads read it, so N heads are sent instead of K.

    rank 0   tokens 0  heads 0 1         head 0  tokens 0 1         tokens 0  heads 0 1
    rank 1   tokens 1  heads 0 1    →    head 1  tokens 0 1    →    tokens 1  heads 0 1

Elements a layer sends, in forward and again in backward: (N-1)/N · B·T/N·C·(2H + 2·max(K, N)):
proportional to a rank's T/N tokens, so it falls with more ranks, where a ring's stays the same.
Papers: Llama 3, arXiv 2407.21783, section 3.3.2; Jacobs et al., 2309.14509 (Ulysses). Lab: e02e.
Shapes: B batch  T tokens  H query heads  K key/value heads  C head size  N ranks.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from einops import rearrange
from torch import Tensor

from minitrain.errors import InputError
from minitrain.model.attention.mask import Mask
from minitrain.model.attention.tiled import check_heads, tiled_attention
from minitrain.parallel.collectives.differentiable import all_to_all, paired
from minitrain.parallel.context.split import chunk_slice, chunks_of, join_tensors, split_tensor
from minitrain.ranks.group import Group


def gather_attention(
    group: Group, order: str, q: Tensor, k: Tensor, v: Tensor, mask: Mask | None = None
) -> Tensor:
    """q (B, H, T/N, C), k and v (B, K, T/N, C) -> (B, H, T/N, C).

    `mask` covers the whole sequence; None: causal.
    """
    check_heads(q, k, v)
    mine, mask = chunks_of(group.rank, group.size, order), mask or Mask(0)
    join, split = (partial(f, group, order, dim=-2) for f in (gather_sequence, sum_sequence))
    k, v = paired(torch.stack((k, v)), join, split)  # (B, K, T, C) both
    everything, chunk = slice(0, k.shape[2]), q.shape[2] // len(mine)
    return torch.cat(
        [
            tiled_attention(queries, k, v, mask.part(chunk_slice(a, chunk), everything))
            for a, queries in zip(mine, q.chunk(len(mine), dim=2))
        ],
        dim=2,
    )


def gather_sequence(group: Group, order: str, part: Tensor, dim: int = 1) -> Tensor:
    """All ranks' parts, (…, T/N, …) -> (…, T, …)."""
    parts = part.new_empty(group.size, *part.shape)
    return join_tensors(group.all_gather(parts, part).unbind(), order, dim)


def sum_sequence(group: Group, order: str, whole: Tensor, dim: int = 1) -> Tensor:
    """This rank's part of the sum over ranks, (…, T, …) -> (…, T/N, …): all read every key."""
    size = group.size
    parts = torch.stack([split_tensor(whole, rank, size, order, dim) for rank in range(size)])
    return group.reduce_scatter(torch.empty_like(parts[0]), parts)


def ulysses_attention(
    group: Group, order: str, q: Tensor, k: Tensor, v: Tensor, mask: Mask | None = None
) -> Tensor:
    """q (B, H, T/N, C), k and v (B, K, T/N, C) -> (B, H, T/N, C); `mask` of the whole sequence."""
    check_heads(q, k, v)
    exchange = partial(all_to_all, group=group)
    return ulysses(q, k, v, group.size, exchange, order, mask or Mask(0))


def ulysses(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    size: int,
    exchange: Callable[[Tensor], Tensor],
    order: str = "contiguous",
    mask: Mask | None = None,
) -> Tensor:
    """q (B, H, T/N, C), k and v (B, K, T/N, C) -> (B, H, T/N, C); causal if `mask` is None.

    `exchange`, a differentiable all-to-all, takes (N, …), piece r for rank r, and returns (N, …),
    piece r from rank r.
    """
    copies = key_copies(q.shape[1], k.shape[1], size)
    k, v = (z.repeat_interleave(copies, dim=1) for z in (k, v))
    pieces = [rearrange(z, "b (n h) t c -> n b h t c", n=size) for z in (q, k, v)]
    heads = [piece.shape[2] for piece in pieces]
    parts = exchange(torch.cat(pieces, dim=2))  # (N, B, …, T/N, C)
    whole = join_tensors(parts.unbind(), order, dim=2)  # (B, …, T, C): my heads, all tokens
    out = tiled_attention(*whole.split(heads, dim=1), mask or Mask(0))  # (B, H/N, T, C)
    mine = [split_tensor(out, rank, size, order, dim=2) for rank in range(size)]
    parts = exchange(torch.stack(mine))  # (N, B, H/N, T/N, C): all heads, my tokens
    return rearrange(parts, "n b h t c -> b (n h) t c")


def key_copies(heads: int, kv_heads: int, ranks: int) -> int:
    """The number of ranks each key/value head goes to: all whose query heads read it."""
    if heads % ranks or (kv_heads % ranks and ranks % kv_heads):
        raise InputError(
            f"Ulysses over {ranks} ranks with {heads} heads and {kv_heads} key/value heads: ranks "
            "must divide the heads, and divide the key/value heads or be a multiple of them; "
            "a ring takes any number"
        )
    return max(1, ranks // kv_heads)
