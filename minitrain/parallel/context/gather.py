"""Context parallelism without a ring: every rank gathers all keys and values, as Llama 3 did.

One all-gather before attention, one reduce-scatter of their gradients after it, both waited for:
(N-1)·S sent in each direction, N·S held, S = 2·B·K·T/N·C elements. With K heads of keys for many
more of queries S is small, and any mask is easy. Paper: Llama 3, arXiv 2407.21783, section 3.3.2.
Shapes: B batch  T tokens  H query heads  K key/value heads  C head size  N ranks.
"""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from minitrain.model.attention.mask import Mask
from minitrain.model.attention.tiled import check_heads, tiled_attention
from minitrain.parallel.collectives.differentiable import paired
from minitrain.parallel.context.split import chunk_slice, chunks_of, join_tensors, split_tensor
from minitrain.ranks.group import Group


def gather_attention(
    group: Group, order: str, q: Tensor, k: Tensor, v: Tensor, mask: Mask | None = None
) -> Tensor:
    """q (B, H, T/N, C), k and v (B, K, T/N, C) -> (B, H, T/N, C).

    `mask` is that of the whole sequence, and causal where it is None.
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
    """This rank's part of the sum over ranks, (…, T, …) -> (…, T/N, …): all have read every key."""
    size = group.size
    parts = torch.stack([split_tensor(whole, rank, size, order, dim) for rank in range(size)])
    return group.reduce_scatter(torch.empty_like(parts[0]), parts)
