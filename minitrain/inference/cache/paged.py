"""Keys and values in pages, and attention that reads them by the block table, span by span.

A text of n tokens holds ⌈n / block⌉ pages, wherever they are free: at most block - 1 places are
paid for and empty, where a dense row pays for the longest text that may come. `block_table` says
where the pages are (cache/blocks.py decides it); position p is in page block_table[p // block].

    naive    gather a text's pages, then attend: a copy of all keys and values, layer by layer
    paged    a span of pages at a time, with a running maximum and sum (FlashAttention's online
             softmax); texts that ended before the span are left out

All new tokens of a step are one batch of N rows with one token each, for every matmul; attention
takes texts with the same number of new tokens together, so that all answers that go on are one
group. Cost: 2·L·K·C numbers a token, in pages; a span of one layer besides.
Paper: Kwon et al., PagedAttention, arXiv 2309.06180. Shapes: L layers  K key/value heads  P pages
S places in a page  C head size  N new tokens  B texts  T new tokens of each.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import groupby

import torch
import torch.nn.functional as F
from einops import rearrange
from torch import Tensor

from minitrain.errors import divide
from minitrain.inference.cache.blocks import Copies
from minitrain.model.config import ModelConfig
from minitrain.model.transformer import Transformer

SPAN = 512  # tokens of each text that are read at a time


@dataclass(frozen=True)
class Part:
    """New tokens of one text: `count` from position `start` on; `blocks` hold its places."""

    blocks: Sequence[int]
    start: int
    count: int

    @property
    def end(self) -> int:
        return self.start + self.count


def batching_order(part: Part) -> tuple[int, int]:
    """Sorted so, equal counts stand together, and long texts before short ones."""
    return part.count, -part.start


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
        self.block_size, self.window = block_size, config.window

    @classmethod
    def of(cls, model: Transformer, num_blocks: int, block_size: int, ranks: int = 1) -> PagedCache:
        """On the model's device, in its dtype; one rank's key/value heads of `ranks`."""
        config, weight = model.config, model.embed.weight
        kv_heads = divide("key/value heads", config.kv_heads, ranks)
        config = replace(config, kv_heads=kv_heads)
        return cls(config, num_blocks, block_size, weight.device, weight.dtype)

    def copy(self, copies: Copies) -> None:
        """Before a step: blocks that are shared and will be written to."""
        if copies:
            sources, targets = torch.tensor(copies, device=self.keys.device).unbind(dim=1)
            for held in (self.keys, self.values):
                held[:, :, targets] = held[:, :, sources]

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
        self.positions = torch.tensor([p for _, p in places], device=device)[:, None]  # (N, 1)
        self.groups, start = [], 0
        for _, alike in groupby(parts, key=lambda part: part.count):
            self.groups.append(Group(cache, list(alike), start))
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


@dataclass(frozen=True)
class Span:
    """A run of places of the first `texts` texts: all others end before it."""

    texts: int
    pages: Tensor  # (texts·pages,)
    mask: Tensor  # (texts, 1, T, span) bool: what each new token may read
    buffers: Tensor  # (2, K, texts·pages, S, C), into which pages are read, layer after layer

    def read(self, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """A layer's keys and values (K, P, S, C) -> those of the span, (K, texts, span, C)."""
        for held, buffer in zip((keys, values), self.buffers):
            torch.index_select(held, 1, self.pages, out=buffer)
        texts = rearrange(self.buffers, "two kv (b p) s c -> two kv b (p s) c", b=self.texts)
        return texts.unbind()


class Group:
    """Texts with `count` new tokens each, which are `rows` of the step's N."""

    def __init__(
        self, cache: PagedCache, parts: Sequence[Part], start: int = 0, span: int = SPAN
    ) -> None:
        self.count = parts[0].count
        self.rows = slice(start, start + self.count * len(parts))
        width = max(len(part.blocks) for part in parts)
        padded = [[*part.blocks, *[0] * (width - len(part.blocks))] for part in parts]
        self.table = torch.tensor(padded, device=cache.keys.device)  # (B, pages)
        ends = torch.tensor([part.end for part in parts], device=cache.keys.device)
        own = torch.arange(-self.count, 0, device=cache.keys.device)
        self.positions = ends[:, None] + own  # (B, T)
        self.spans = [
            self._span(cache, parts, page, max(1, span // cache.block_size))
            for page in range(0, width, max(1, span // cache.block_size))
        ]

    def _span(self, cache: PagedCache, parts: Sequence[Part], page: int, pages: int) -> Span:
        size = cache.block_size
        reaching = [row for row, part in enumerate(parts) if part.end > page * size]
        texts = max(reaching, default=-1) + 1
        table = self.table[:texts, page : page + pages]
        first, stop = page * size, page * size + table.shape[1] * size
        mask = readable(self.positions[:texts], first, stop, cache.window)
        _, heads, _, *place = cache.keys.shape
        buffers = cache.keys.new_empty(2, heads, table.numel(), *place)
        return Span(texts, table.flatten(), mask[:, None], buffers)


def readable(positions: Tensor, first: int, stop: int, window: int | None) -> Tensor:
    """positions (B, T) -> (B, T, keys) bool: may each read the keys at places first to stop."""
    distance = positions[:, :, None] - torch.arange(first, stop, device=positions.device)
    seen = distance >= 0
    return seen if window is None else seen & (distance < window)


def paged_attention_naive(
    q: Tensor, keys: Tensor, values: Tensor, group: Group, window: int | None = None
) -> Tensor:
    """q (B, H, T, C), keys and values (K, P, S, C) -> (B, H, T, C), by gathering all pages."""
    k, v = (
        rearrange(held[:, group.table], "kv b p s c -> b kv (p s) c") for held in (keys, values)
    )
    mask = readable(group.positions, 0, k.shape[2], window)[:, None]  # (B, 1, T, pages·S)
    return fused(q, k, v, mask)


def fused(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    grouped = q.shape[1] != k.shape[1]
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=grouped)


def paged_attention(q: Tensor, keys: Tensor, values: Tensor, group: Group) -> Tensor:
    """The same, a span of places at a time.

    With m the largest score so far, l the sum of exp(score - m) and o that of exp(score - m)·v, a
    span with scores s and values v makes of them

        m' = max(m, s),   l' = l·exp(m - m') + Σ exp(s - m'),   o' = o·exp(m - m') + exp(s - m') v

    and o / l at the end is the softmax's answer, whatever the spans. A single one is left to the
    fused kernel.
    """
    if len(group.spans) == 1:
        k, v = group.spans[0].read(keys, values)  # (K, B, span, C)
        return fused(q, k.transpose(0, 1), v.transpose(0, 1), group.spans[0].mask)
    q = rearrange(q * q.shape[-1] ** -0.5, "b (kv g) t c -> kv b g t c", kv=len(keys))
    kv_heads, texts, shared, count, size = q.shape
    lowest = torch.finfo(q.dtype).min  # as -inf, but what is subtracted from it is no nan
    m = q.new_full((kv_heads, texts, shared * count, 1), lowest)
    total, out = torch.zeros_like(m), m.new_zeros(kv_heads, texts, shared * count, size)
    for span in group.spans:
        b = span.texts
        k, v = span.read(keys, values)  # (K, b, span, C)
        scores = q[:, :b].flatten(2, 3) @ k.transpose(2, 3)  # (K, b, G·T, span)
        scores.masked_fill_(~span.mask[:, 0].repeat(1, shared, 1), lowest)
        higher = torch.maximum(m[:, :b], scores.amax(dim=-1, keepdim=True))
        shrunk, weights = (m[:, :b] - higher).exp(), scores.sub_(higher).exp_()
        total[:, :b] = total[:, :b] * shrunk + weights.sum(dim=-1, keepdim=True)
        out[:, :b] = out[:, :b] * shrunk + weights @ v
        m[:, :b] = higher
    return rearrange(out / total, "kv b (g t) c -> b (kv g) t c", t=count)
