"""A request's keys and values as one tensor, out of one paged cache and into another.

Pages are wherever there was room, in another order on the other side; on the wire they stand in the
text's order. 2·L·K·C numbers a token, in whole pages. Shapes: L layers  K key/value heads
P pages of the cache  n pages of the text  S places in a page  C head size.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from minitrain.inference.cache.paged import PagedCache
from minitrain.model.transformer import Transformer


def take(cache: PagedCache, blocks: Sequence[int]) -> Tensor:
    """A copy (2, L, K, n, S, C): the pages may be written over before it has been sent."""
    pages = torch.tensor(blocks, device=cache.keys.device)
    return torch.stack([held.index_select(2, pages) for held in (cache.keys, cache.values)])


def put(cache: PagedCache, blocks: Sequence[int], sent: Tensor) -> None:
    """sent (2, L, K, n, S, C) into these n pages."""
    pages = torch.tensor(blocks, device=cache.keys.device)
    for held, own in zip((cache.keys, cache.values), sent):
        held.index_copy_(2, pages, own)


def room_for(cache: PagedCache, count: int) -> Tensor:
    """(2, L, K, count, S, C), not filled."""
    layers, heads, _, *place = cache.keys.shape
    return cache.keys.new_empty(2, layers, heads, count, *place)


def page_bytes(model: Transformer, block_size: int) -> int:
    """Bytes of one page on the wire."""
    config, itemsize = model.config, model.embed.weight.itemsize
    return 2 * config.layers * config.kv_heads * config.head_size * block_size * itemsize
