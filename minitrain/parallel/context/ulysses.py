"""Ulysses: an all-to-all turns T/N tokens of all heads into all tokens of H/N heads, and back.

Between the two, attention is one process's own, and zig-zag order is not needed for balance. Heads
are what it divides by: N must divide H, and N divide K or K divide N. Where K < N, each key/value
head goes to the N/K ranks whose query heads read it, so the wire carries N heads instead of K.

    rank 0   tokens 0  heads 0 1         head 0  tokens 0 1         tokens 0  heads 0 1
    rank 1   tokens 1  heads 0 1    →    head 1  tokens 0 1    →    tokens 1  heads 0 1

Bytes a layer sends, forward, and again in backward: (N-1)/N · B·T/N·C·(2H + 2·max(K, N)) elements:
1/N of a rank's tokens, so that with more ranks each sends less, where a ring's stays the same.
Paper: Jacobs et al., arXiv 2309.14509. Lab: e02e.
Shapes: B batch  T tokens  H query heads  K key/value heads  C head size  N ranks.
"""

from __future__ import annotations

import torch
from einops import rearrange, repeat
from torch import Tensor

from minitrain.model.attention.mask import Mask
from minitrain.model.attention.tiled import check_heads, tiled_attention
from minitrain.parallel.collectives.differentiable import all_to_all
from minitrain.parallel.context.plain import key_copies
from minitrain.parallel.context.split import join_tensors, split_tensor
from minitrain.ranks.group import Group


def ulysses_attention(
    group: Group, order: str, q: Tensor, k: Tensor, v: Tensor, mask: Mask | None = None
) -> Tensor:
    """q (B, H, T/N, C), k and v (B, K, T/N, C) -> (B, H, T/N, C); `mask` of the whole sequence."""
    check_heads(q, k, v)
    copies = key_copies(q.shape[1], k.shape[1], group.size)
    k, v = (repeat(z, "b kv t c -> b (kv copies) t c", copies=copies) for z in (k, v))
    by_rank = [rearrange(z, "b (n h) t c -> n b h t c", n=group.size) for z in (q, k, v)]
    heads = [z.shape[2] for z in by_rank]
    parts = all_to_all(torch.cat(by_rank, dim=2), group)  # (N, B, …, T/N, C)
    whole = join_tensors(parts.unbind(), order, dim=2)  # (B, …, T, C): my heads, all tokens
    out = tiled_attention(*whole.split(heads, dim=1), mask or Mask(0))  # (B, H/N, T, C)
    mine = [split_tensor(out, rank, group.size, order, dim=2) for rank in range(group.size)]
    parts = all_to_all(torch.stack(mine), group)  # (N, B, H/N, T/N, C): all heads, my tokens
    return rearrange(parts, "n b h t c -> b (n h) t c")
