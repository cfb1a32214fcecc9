"""Keys and values in pages: where new ones are written, and how a pass reads them.

A text of n tokens holds ⌈n / block⌉ pages, wherever they are free: at most block - 1 places are
paid for and empty, where a dense row pays for the longest text that may come. `block_table` says
where the pages are (cache/blocks.py decides it); position p is in page block_table[p // block].

All new tokens of a step are one batch of N rows with one token each, for every matmul; attention
(spans.py) takes texts with the same number of new tokens together. A tree of drafts stands place by
place behind its text, and `keep` moves the way that was kept. Cost: 2·L·K·C numbers a token, in
pages; a span of one layer besides.
Paper: Kwon et al., PagedAttention, arXiv 2309.06180. Shapes: L layers  K key/value heads  P pages
S places in a page  C head size  N new tokens  B texts  T new tokens of each.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import replace

import torch
from einops import rearrange
from torch import Tensor

from minitrain.errors import divide
from minitrain.inference.cache.blocks import Copies
from minitrain.inference.cache.spans import Group, Part, paged_attention, tiles
from minitrain.model.config import ModelConfig
from minitrain.model.transformer import Transformer


class PagedCache:
    """`keys` and `values` (L, K, P, S, C)."""

    def __init__(
        self,
        config: ModelConfig,
        num_blocks: int,
        block_size: int,
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32,
    ) -> None:
        shape = (config.layers, config.kv_heads, num_blocks, block_size, config.head_size)
        self.keys = torch.zeros(shape, device=device, dtype=dtype)
        self.values = torch.zeros(shape, device=device, dtype=dtype)
        self.room = self.keys.new_empty(0)
        self.block_size, self.window = block_size, config.window

    @classmethod
    def of(cls, model: Transformer, num_blocks: int, block_size: int, ranks: int = 1) -> PagedCache:
        """On the model's device, in its dtype; one rank's key/value heads of `ranks`."""
        config, weight = model.config, model.embed.weight
        kv_heads = divide("key/value heads", config.kv_heads, ranks)
        config = replace(config, kv_heads=kv_heads)
        return cls(config, num_blocks, block_size, weight.device, weight.dtype)

    @property
    def page_bytes(self) -> int:
        return 2 * self.keys.nbytes // self.keys.shape[2]

    def scratch(self, *shape: int) -> Tensor:
        """Room for pages that are read and forgotten; the next one to ask may be given the same."""
        needed = math.prod(shape)
        if needed > len(self.room):
            with torch.inference_mode(False):  # it may be written to outside of it as well
                self.room = self.keys.new_empty(needed)
        return self.room[:needed].view(shape)

    def copy(self, copies: Copies) -> None:
        """Before a step: blocks that are shared and will be written to."""
        if copies:
            sources, targets = torch.tensor(copies, device=self.keys.device).unbind(dim=1)
            for held in (self.keys, self.values):
                held[:, :, targets] = held[:, :, sources]

    def wipe(self, blocks: Collection[int]) -> None:
        """Zeros: a place that is masked is read all the same, and NaN in it would be in the sum."""
        for held in (self.keys, self.values):
            held[:, :, list(blocks)] = 0

    def keep(self, blocks: Sequence[int], start: int, places: Sequence[int]) -> None:
        """Moves the tokens at `start` + `places` of a sequence to `start`, `start` + 1, …, in that
        order: a tree's accepted path."""
        moved = [(place, own) for own, place in enumerate(places) if place != own]
        if not moved:
            return
        at = torch.tensor(moved, device=self.keys.device) + start  # (n, 2)
        pages = torch.tensor(blocks, device=self.keys.device)[at // self.block_size]
        sources, targets = (pages * self.block_size + at % self.block_size).unbind(dim=1)
        for held in (self.keys, self.values):
            flat = held.flatten(2, 3)  # (L, K, P·S, C)
            flat[:, :, targets] = flat[:, :, sources]  # all are read before one is written

    def reader(self, parts: Sequence[Part]) -> PagedReader:
        """For tokens (N, 1), the parts' one after the other."""
        return PagedReader(self, parts)


class PagedReader:
    """One pass; see `forward.Reader`. Everything that is alike for all layers is made here."""

    def __init__(self, cache: PagedCache, parts: Sequence[Part]) -> None:
        device, size = cache.keys.device, cache.block_size
        places = [(part, p) for part in parts for p in range(part.start, part.end)]
        slots = [part.blocks[p // size] * size + p % size for part, p in places]
        self.cache = cache
        self.slots = torch.tensor(slots, device=device)  # (N,)
        standing = [position for part in parts for position in part.standing]
        self.positions = torch.tensor(standing, device=device)[:, None]  # (N, 1)
        self.groups, start = [], 0
        for tile in tiles(cache, parts):
            self.groups.append(Group(cache, tile, start))
            start = self.groups[-1].rows.stop

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """q (N, H, 1, C), k and v (N, K, 1, C) -> (N, H, 1, C)."""
        keys, values = self.cache.keys[layer], self.cache.values[layer]  # (K, P, S, C)
        for held, new in ((keys, k), (values, v)):
            flat = held.flatten(1, 2)  # (K, P·S, C)
            flat.index_copy_(1, self.slots, new[:, :, 0].transpose(0, 1))  # (K, N, C)
        outs = []
        for group in self.groups:
            own = q[group.rows]  # (B·T, H, 1, C), which is (B, H, T, C) where T is 1
            if group.count > 1:
                own = rearrange(own, "(b t) h 1 c -> b h t c", t=group.count)
            out = paged_attention(own, keys, values, group)
            if group.count > 1:
                out = rearrange(out, "b h t c -> (b t) h 1 c")
            outs.append(out)
        return torch.cat(outs) if len(outs) > 1 else outs[0]
