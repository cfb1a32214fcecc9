"""The paged KV cache: writing keys and values into pages, and attention over them.

A sequence of n tokens holds ⌈n / block⌉ pages, wherever they are free: at most block - 1 positions
are wasted, where a dense row reserves the longest sequence possible. `block_table` lists the
pages (assigned by cache/blocks.py); position p is in page block_table[p // block].

    naive    gather a sequence's pages, then attend: copies all keys and values, layer by layer
    paged    a span of pages at a time, with a running maximum and sum (FlashAttention's online
             softmax); sequences that end before the span are left out

All new tokens of a step are one batch of N rows with one token each, for every matmul. Attention
batches sequences with equal numbers of new tokens, on a CPU only as many as fit in a core's cache:
their pages are copied into one buffer, read at once and reused for the next ones, so that the
copies never reach memory. With a window, only the pages within it are read. The nodes of a draft
tree are stored one after the other behind its sequence; each node has its depth's position and
sees its own path; `keep` moves the accepted path. Cost: 2·L·K·C numbers a token, in pages, plus a
span of one layer.
Paper: Kwon et al., PagedAttention, arXiv 2309.06180. Shapes: L layers  K key/value heads  P pages
S positions in a page  C head size  N new tokens  B sequences  T new tokens of each.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

import torch
import torch.nn.functional as F
from einops import rearrange
from torch import Tensor

from minitrain.errors import divide
from minitrain.inference.cache.blocks import Copies
from minitrain.inference.forward import near
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
        """A cache on the model's device, in its dtype, with one rank's key/value heads."""
        config, weight = model.config, model.embed.weight
        kv_heads = divide("key/value heads", config.kv_heads, ranks)
        config = replace(config, kv_heads=kv_heads)
        return cls(config, num_blocks, block_size, weight.device, weight.dtype)

    @property
    def page_bytes(self) -> int:
        return 2 * self.keys.nbytes // self.keys.shape[2]

    def scratch(self, *shape: int) -> Tensor:
        """Scratch memory for gathered pages; the next call may return the same memory."""
        needed = math.prod(shape)
        if needed > len(self.room):
            with torch.inference_mode(False):  # also writable outside of inference mode
                self.room = self.keys.new_empty(needed)
        return self.room[:needed].view(shape)

    def copy(self, copies: Copies) -> None:
        """Copies shared blocks before a step writes to them."""
        if copies:
            sources, targets = torch.tensor(copies, device=self.keys.device).unbind(dim=1)
            for held in (self.keys, self.values):
                held[:, :, targets] = held[:, :, sources]

    def wipe(self, blocks: Collection[int]) -> None:
        """Zeroes blocks: masked positions are still read, and a NaN there would reach the sum."""
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
            flat[:, :, targets] = flat[:, :, sources]  # all reads happen before the writes

    def reader(self, parts: Sequence[Part]) -> PagedReader:
        """A reader for tokens (N, 1), the parts' tokens concatenated."""
        return PagedReader(self, parts)


class PagedReader:
    """One pass; see `forward.Reader`. Builds everything that all layers share."""

    def __init__(self, cache: PagedCache, parts: Sequence[Part]) -> None:
        device, size = cache.keys.device, cache.block_size
        places = [(part, p) for part in parts for p in range(part.start, part.end)]
        slots = [part.blocks[p // size] * size + p % size for part, p in places]
        self.cache = cache
        self.slots = torch.tensor(slots, device=device)  # (N,)
        standing = [position for part in parts for position in part.standing]
        self.positions = torch.tensor(standing, device=device)[:, None]  # (N, 1)
        self.tiles, start = [], 0
        for alike in tiles(cache, parts):
            self.tiles.append(Tile(cache, alike, start))
            start = self.tiles[-1].rows.stop

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """q (N, H, 1, C), k and v (N, K, 1, C) -> (N, H, 1, C)."""
        keys, values = self.cache.keys[layer], self.cache.values[layer]  # (K, P, S, C)
        for held, new in ((keys, k), (values, v)):
            flat = held.flatten(1, 2)  # (K, P·S, C)
            flat.index_copy_(1, self.slots, new[:, :, 0].transpose(0, 1))  # (K, N, C)
        outs = []
        for tile in self.tiles:
            own = q[tile.rows]  # (B·T, H, 1, C), which is (B, H, T, C) where T is 1
            if tile.count > 1:
                own = rearrange(own, "(b t) h 1 c -> b h t c", t=tile.count)
            out = paged_attention(own, keys, values, tile)
            if tile.count > 1:
                out = rearrange(out, "b h t c -> (b t) h 1 c")
            outs.append(out)
        return torch.cat(outs) if len(outs) > 1 else outs[0]


SPAN = 512  # tokens of each sequence read at a time
TILE = 2**20  # bytes of keys and values read at a time: half of most cores' cache


@dataclass(frozen=True)
class Part:
    """New tokens of one sequence: `count` from position `start` on, stored in `blocks`.

    A tree of drafts has its own `positions` (count,), and `seen` (count, count) bool: the new
    tokens that each reads, itself included; everything earlier is read by all.
    """

    blocks: Sequence[int]
    start: int
    count: int
    positions: Sequence[int] | None = None  # None: the places
    seen: Tensor | None = None

    @property
    def end(self) -> int:
        return self.start + self.count

    @property
    def standing(self) -> Sequence[int]:
        """Each new token's position."""
        return range(self.start, self.end) if self.positions is None else self.positions

    def first_page(self, size: int, window: int | None) -> int:
        """The first page that any new token reads."""
        return 0 if window is None else max(0, self.start - window + 1) // size


def batching_order(part: Part) -> tuple[int, int]:
    """Sort key: groups equal counts, and puts long sequences before short ones."""
    return part.count, -part.start


def tiles(cache: PagedCache, parts: Sequence[Part]) -> Iterator[list[Part]]:
    """Parts in batching order -> groups that are read together."""
    _, heads, _, size, channels = cache.keys.shape
    page_bytes = 2 * heads * size * channels * cache.keys.itemsize  # per layer
    for _, alike in groupby(parts, key=lambda part: part.count):
        tile: list[Part] = []
        widest = 0
        for part in alike:
            pages = len(part.blocks) - part.first_page(size, cache.window)
            pages = min(pages, max(1, SPAN // size))  # read at a time
            full = (len(tile) + 1) * max(widest, pages) * page_bytes > TILE
            if tile and full and cache.keys.device.type == "cpu":
                yield tile
                tile, widest = [], 0
            tile.append(part)
            widest = max(widest, pages)
        yield tile


@dataclass(frozen=True)
class Span:
    """A range of positions of the first `texts` sequences: all others end before it."""

    texts: int
    pages: Tensor  # (texts·pages,)
    mask: Tensor  # (texts, 1, T, span) bool: what each new token may read
    bias: Tensor  # the mask as 0 and -inf, made once for all layers, for the fused kernel
    buffers: Tensor  # (2, K, texts·pages, S, C) for gathered pages; other spans' too

    def read(self, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """A layer's keys and values (K, P, S, C) -> those of the span, (K, texts, span, C)."""
        for held, buffer in zip((keys, values), self.buffers):
            torch.index_select(held, 1, self.pages, out=buffer)
        texts = rearrange(self.buffers, "two kv (b p) s c -> two kv b (p s) c", b=self.texts)
        return texts.unbind()


class Tile:
    """Sequences with `count` new tokens each, at `rows` of the step's N. Each row of the table
    starts with the first page read, whose first position is in `offsets`."""

    def __init__(
        self, cache: PagedCache, parts: Sequence[Part], start: int = 0, span: int = SPAN
    ) -> None:
        device, size = cache.keys.device, cache.block_size
        self.parts, self.window, self.count = parts, cache.window, parts[0].count
        self.rows = slice(start, start + self.count * len(parts))
        firsts = [part.first_page(size, cache.window) for part in parts]
        read = [part.blocks[first:] for part, first in zip(parts, firsts)]
        width, pages = max(map(len, read)), max(1, span // size)
        padded = [[*blocks, *blocks[-1:] * (width - len(blocks))] for blocks in read]  # own pages:
        # another sequence's may hold NaN, which masking does not remove
        self.table = torch.tensor(padded, device=device)  # (B, pages)
        self.offsets = torch.tensor(firsts, device=device) * size  # (B,)
        self.positions = torch.tensor([list(p.standing) for p in parts], device=device)  # (B, T)
        self.spans = [self._span(cache, page, pages) for page in range(0, width, pages)]

    def _span(self, cache: PagedCache, page: int, pages: int) -> Span:
        size, offsets = cache.block_size, self.offsets.tolist()
        ends = [part.end - offset for part, offset in zip(self.parts, offsets)]
        texts = max((row + 1 for row, end in enumerate(ends) if end > page * size), default=0)
        table = self.table[:texts, page : page + pages]
        mask = self.readable(texts, page * size, page * size + table.shape[1] * size)
        _, heads, _, *place = cache.keys.shape
        buffers = cache.scratch(2, heads, table.numel(), *place)
        bias = cache.keys.new_zeros(mask.shape).masked_fill_(~mask, -torch.inf)
        return Span(texts, table.flatten(), mask[:, None], bias[:, None], buffers)

    def readable(self, texts: int, first: int, stop: int) -> Tensor:
        """(texts, T, stop - first) bool: which of positions `offset` + first to `offset` + stop
        each new token of the first `texts` sequences reads."""
        columns = torch.arange(first, stop, device=self.positions.device)
        places = self.offsets[:texts, None] + columns  # (b, keys)
        positions = self.positions[:texts]
        mask = near(positions[:, :, None] - places[:, None], self.window)
        for row, part in enumerate(self.parts[:texts]):
            if part.seen is not None:
                own = positions[row]
                seen = part.seen.to(own.device) & near(own[:, None] - own, self.window)  # (T, T)
                new = (places[row] >= part.start) & (places[row] < part.end)
                mask[row, :, new] = seen[:, places[row, new] - part.start]
        return mask


def paged_attention_naive(q: Tensor, keys: Tensor, values: Tensor, tile: Tile) -> Tensor:
    """q (B, H, T, C), keys and values (K, P, S, C) -> (B, H, T, C), by gathering all pages."""
    k, v = (rearrange(held[:, tile.table], "kv b p s c -> b kv (p s) c") for held in (keys, values))
    mask = tile.readable(len(q), 0, k.shape[2])[:, None]  # (B, 1, T, pages·S)
    return fused(q, k, v, mask)


def fused(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    grouped = q.shape[1] != k.shape[1]
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=grouped)


def paged_attention(q: Tensor, keys: Tensor, values: Tensor, tile: Tile) -> Tensor:
    """`paged_attention_naive`, a span of positions at a time.

    With m the maximum score so far, l the sum of exp(score - m) and o that of exp(score - m)·v, a
    span with scores s and values v updates them to

        m' = max(m, s),   l' = l·exp(m - m') + Σ exp(s - m'),   o' = o·exp(m - m') + exp(s - m') v

    and o / l at the end is the attention output, for any spans. A single span is left to the fused
    kernel.
    """
    if len(tile.spans) == 1:
        k, v = tile.spans[0].read(keys, values)  # (K, B, span, C)
        return fused(q, k.transpose(0, 1), v.transpose(0, 1), tile.spans[0].bias)
    q = rearrange(q * q.shape[-1] ** -0.5, "b (kv g) t c -> kv b g t c", kv=len(keys))
    kv_heads, texts, shared, count, size = q.shape
    lowest = torch.finfo(q.dtype).min  # acts as -inf, without nan when subtracted from itself
    m = q.new_full((kv_heads, texts, shared * count, 1), lowest)
    total, out = torch.zeros_like(m), m.new_zeros(kv_heads, texts, shared * count, size)
    for span in tile.spans:
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
