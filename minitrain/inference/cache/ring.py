"""The ring cache: memory for a window of tokens and the first few, at any sequence length.

    window 4, 2 sinks                 place   0  1 │ 2  3  4  5
    tokens 0 to 5                             0  1 │ 2  3  4  5
    token 6 overwrites token 2                0  1 │ 6  3  4  5
    token 9                                   0  1 │ 6  7  8  9

A model trained with a sliding window reads the same as before, in constant memory; with L layers,
tokens outside the window still have influence over L·(window - 1) tokens. Models trained without
one attend strongly to the very first tokens, whatever these are: softmax weights must go somewhere.
With those kept as sinks such a model keeps working (Xiao et al. count positions within the cache;
here they keep growing, as in the sequence). Cost: 2·L·B·K·(sinks + window)·C numbers.
Papers: Beltagy et al., Longformer, arXiv 2004.05150; Jiang et al., Mistral 7B, 2310.06825; Xiao et
al., StreamingLLM, 2309.17453. Shapes: L layers  B rows  T new tokens  K key/value heads  C head
size  S positions.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from minitrain.errors import InputError
from minitrain.model.config import ModelConfig
from minitrain.model.transformer import Transformer

EMPTY = -1  # a position that holds no token


class RingCache:
    """`keys` and `values` (L, B, K, S, C); all rows have equal length. A token sees itself, the
    `window` - 1 tokens before it, and the first `sinks` of the sequence."""

    def __init__(
        self,
        config: ModelConfig,
        rows: int,
        window: int | None = None,
        sinks: int = 0,
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32,
    ) -> None:
        """`window` None: the model's own."""
        window = config.window if window is None else window
        if window is None:
            raise InputError("the model has no window of its own: give one, of 256 tokens say")
        if window < 1 or sinks < 0:
            raise InputError(f"window {window}, sinks {sinks}: give 1 or more, and 0 or more")
        if config.window is not None and (window != config.window or sinks):
            raise InputError(
                f"the model was trained with a window of {config.window} and no sinks: leave both"
            )
        shape = (config.layers, rows, config.kv_heads, sinks + window, config.head_size)
        self.keys = torch.zeros(shape, device=device, dtype=dtype)
        self.values = torch.zeros(shape, device=device, dtype=dtype)
        self.held = torch.full((sinks + window,), EMPTY, device=device)  # token at each position
        self.window, self.sinks = window, sinks
        self.lengths = [0] * rows

    @classmethod
    def of(
        cls, model: Transformer, rows: int, window: int | None = None, sinks: int = 0
    ) -> RingCache:
        """A cache on the model's device, in its dtype."""
        weight = model.embed.weight
        return cls(model.config, rows, window, sinks, weight.device, weight.dtype)

    def reader(self, new: int) -> RingReader:
        return RingReader(self, new)

    def grow(self, new: int) -> None:
        """To be called after a pass: counts the new tokens, already written."""
        start = self.lengths[0]
        kept = self.kept(start, new)
        self.held[self.places(kept)] = kept
        self.lengths = [length + new for length in self.lengths]

    def kept(self, start: int, new: int) -> Tensor:
        """The `new` tokens from `start` on that are still held after the last one is written."""
        tokens = torch.arange(start, start + new, device=self.held.device)
        return tokens[(tokens < self.sinks) | (tokens >= start + new - self.window)]

    def places(self, tokens: Tensor) -> Tensor:
        turning = self.sinks + (tokens - self.sinks) % self.window
        return torch.where(tokens < self.sinks, tokens, turning)

    def readable(self, queries: Tensor, keys: Tensor) -> Tensor:
        """Token numbers (T,) and (S,) -> (T, S) bool."""
        distance = queries[:, None] - keys
        near = (distance < self.window) | (keys < self.sinks)
        return (distance >= 0) & near & (keys != EMPTY)


class RingReader:
    """One pass; see `forward.Reader`. New tokens read the ring as it was, and one another: in a
    long chunk the first ones still see tokens that the last ones will overwrite."""

    def __init__(self, cache: RingCache, new: int) -> None:
        self.cache, self.start = cache, cache.lengths[0]
        tokens = torch.arange(self.start, self.start + new, device=cache.held.device)  # (T,)
        self.positions = tokens.expand(len(cache.lengths), -1)  # (B, T)
        self.mask = cache.readable(tokens, torch.cat((cache.held, tokens)))  # (T, S + T)
        kept = cache.kept(self.start, new)
        self.chosen, self.places = kept - self.start, cache.places(kept)

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """q (B, H, T, C), k and v (B, K, T, C) -> (B, H, T, C)."""
        keys, values = self.cache.keys[layer], self.cache.values[layer]  # (B, K, S, C)
        out = F.scaled_dot_product_attention(
            q,
            torch.cat((keys, k), dim=2),
            torch.cat((values, v), dim=2),
            attn_mask=self.mask,
            enable_gqa=q.shape[1] != k.shape[1],
        )
        keys[:, :, self.places] = k[:, :, self.chosen]
        values[:, :, self.places] = v[:, :, self.chosen]
        return out
