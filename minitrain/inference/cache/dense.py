"""The dense cache: a row per sequence, allocated for the longest sequence possible.

    row 0   t t t t t . . . . .      . allocated but unused: 60 to 80% of the memory
    row 1   t t . . . . . . . .        in servers that work this way (Kwon et al., 2309.06180)

Keys and values are written into preallocated memory. (`transformers`' DynamicCache concatenates:
each new token copies everything before it, t²/2 copies for t tokens.) Cost: 2·L·B·K·S·C
numbers, held from the first token on.
Shapes: L layers  B rows  T new tokens  K key/value heads  S room a row  C head size.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
import torch.nn.functional as F
from einops import rearrange
from torch import Tensor

from minitrain.errors import InputError
from minitrain.inference.forward import Reader, forward_new, near
from minitrain.model.config import ModelConfig
from minitrain.model.transformer import Transformer


class DenseCache:
    """`keys` and `values` (L, B, K, S, C); the first `lengths[b]` positions of row b are in use.

    Positions past a row's length are never read, and later overwritten: so `truncate` drops tokens
    at no cost, and rows of a batch may differ in length.
    """

    def __init__(
        self,
        config: ModelConfig,
        rows: int,
        room: int,
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32,
    ) -> None:
        shape = (config.layers, rows, config.kv_heads, room, config.head_size)
        self.keys = torch.zeros(shape, device=device, dtype=dtype)
        self.values = torch.zeros(shape, device=device, dtype=dtype)
        self.lengths = [0] * rows
        self.window = config.window

    @classmethod
    def of(cls, model: Transformer, rows: int, room: int) -> DenseCache:
        """A cache on the model's device, in its dtype."""
        weight = model.embed.weight
        return cls(model.config, rows, room, weight.device, weight.dtype)

    @property
    def room(self) -> int:
        return self.keys.shape[3]

    def reader(
        self, new: int, positions: Tensor | None = None, seen: Tensor | None = None
    ) -> DenseReader:
        """A reader for `new` tokens a row, from the row's own length on.

        A tree of drafts has its own `positions` (B, new), and `seen` (new, new) bool: the new
        tokens that each reads, itself included; everything earlier is read by all.
        """
        if max(self.lengths) + new > self.room:
            raise InputError(
                f"the cache has room for {self.room} tokens a row and would hold "
                f"{max(self.lengths) + new}: make it with more room"
            )
        if seen is not None and self.window is not None:
            raise InputError(
                "a tree of tokens cannot be read through a sliding window: give them one by one"
            )
        return DenseReader(self, new, positions, seen)

    def grow(self, new: int) -> None:
        """After a pass: each row holds `new` more tokens."""
        self.lengths = [length + new for length in self.lengths]

    def truncate(self, lengths: Sequence[int]) -> None:
        """Row b keeps its first `lengths[b]` tokens."""
        if len(lengths) != len(self.lengths) or any(
            not 0 <= kept <= held for kept, held in zip(lengths, self.lengths)
        ):
            raise InputError(
                f"rows of {self.lengths} tokens cannot be cut to {list(lengths)}: give a length "
                "for each row, 0 to what it has"
            )
        self.lengths = list(lengths)

    def keep(self, row: int, start: int, places: Sequence[int]) -> None:
        """Keeps, in row `row` from `start` on, only the tokens at `start` + `places`, in that
        order: a tree's accepted path."""
        at = torch.tensor(places, dtype=torch.long, device=self.keys.device) + start
        for held in (self.keys, self.values):
            held[:, row, :, start : start + len(places)] = held[:, row, :, at]
        self.lengths[row] = start + len(places)


class DenseReader:
    """One pass; see `forward.Reader`. The mask is made once, for all layers."""

    def __init__(
        self, cache: DenseCache, new: int, positions: Tensor | None, seen: Tensor | None
    ) -> None:
        device = cache.keys.device
        self.cache, self.new = cache, new
        self.starts = torch.tensor(cache.lengths, device=device)  # (B,)
        self.end = max(cache.lengths) + new
        places = self.starts[:, None] + torch.arange(new, device=device)  # (B, T)
        self.positions = places if positions is None else positions
        self.even = len(set(cache.lengths)) == 1
        self.rows = torch.arange(len(cache.lengths), device=device)[:, None]  # (B, 1)
        self.places = places
        self.mask = self._mask(seen)

    def _mask(self, seen: Tensor | None) -> Tensor | None:
        """(B, 1, T, S) bool; None if every query reads all, or `causal` is enough."""
        fresh = self.end == self.new
        self.causal = fresh and seen is None and self.cache.window is None and self.new > 1
        one_sees_all = self.even and self.new == 1 and self.cache.window is None
        if self.causal or one_sees_all:
            return None
        key = torch.arange(self.end, device=self.places.device)  # (S,)
        if seen is None:
            distance = self.places[:, :, None] - key  # (B, T, S)
            readable = near(distance, self.cache.window)
        else:
            readable = (key < self.starts[:, None, None]).repeat(1, self.new, 1)  # (B, T, S)
            rows = self.rows[:, :, None]  # (B, 1, 1)
            queries = torch.arange(self.new, device=rows.device)[:, None]  # (T, 1)
            readable[rows, queries, self.places[:, None, :]] = seen
        return rearrange(readable, "b t s -> b 1 t s")

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """q (B, H, T, C), k and v (B, K, T, C) -> (B, H, T, C)."""
        keys, values = self.cache.keys[layer], self.cache.values[layer]  # (B, K, S, C)
        if self.even:
            keys[:, :, self.end - self.new : self.end] = k
            values[:, :, self.end - self.new : self.end] = v
        else:
            keys[self.rows, :, self.places] = rearrange(k, "b h t c -> b t h c")
            values[self.rows, :, self.places] = rearrange(v, "b h t c -> b t h c")
        return F.scaled_dot_product_attention(
            q,
            keys[:, :, : self.end],
            values[:, :, : self.end],
            attn_mask=self.mask,
            is_causal=self.causal,
            enable_gqa=q.shape[1] != k.shape[1],
        )


class RowCache(Protocol):
    """A cache with one row per sequence of the batch: dense, quantized, or a ring."""

    lengths: Sequence[int]

    def reader(self, new: int) -> Reader: ...

    def grow(self, new: int) -> None: ...


def read_on(
    model: Transformer,
    tokens: Tensor,
    cache: RowCache,
    positions: Tensor | None = None,
    seen: Tensor | None = None,
) -> Tensor:
    """tokens (B, T), continuing each row -> hidden (B, T, D); the rows grow by T.

    In a dense cache, shorter rows are padded at their ends, and cut by `truncate` afterwards; a
    tree's `positions` and `seen` are only for a dense cache.
    """
    if len(tokens) != len(cache.lengths):
        raise InputError(
            f"the batch has {len(tokens)} rows and the cache {len(cache.lengths)}: make one for "
            "each batch"
        )
    tree = () if positions is None and seen is None else (positions, seen)
    hidden = forward_new(model, tokens, cache.reader(tokens.shape[1], *tree))
    cache.grow(tokens.shape[1])
    return hidden
