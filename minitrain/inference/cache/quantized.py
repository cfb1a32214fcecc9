"""A KV cache in 8 or 4 bits, with the newest tokens unquantized.

    keys      one range per channel of a group of tokens: a few channels are always large, and would
              use up all levels if each token had one range
    values    one range per token: no channel stands out, and attention weights whole tokens
    residual  the last tokens, unquantized: they are read the most, and a group must be complete

                 ┌ group ┐┌ group ┐┌ group ┐ residual and the start of the next group
        tokens   ████████ ████████ ████████ t t t t t t t t t t t
                 int4     int4     int4     float

A token is quantized only once, so the error stays within its own range and does not grow with
length. Bits a number: b + (64 + b)/group of keys and b + (64 + b)/C of values, since a range has a
float32 scale and lowest value, and a zero point of b bits; the residual comes on top.
Reads are dequantized: this saves memory, but on a CPU no time.
Paper: Liu et al., KIVI, arXiv 2402.02750. Shapes: L layers  B rows  K key/value heads  C head size.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from einops import rearrange
from torch import Tensor

from minitrain.errors import InputError, check_whole
from minitrain.inference.forward import near
from minitrain.inference.parameters import as_whole
from minitrain.model.config import ModelConfig
from minitrain.model.transformer import Transformer
from minitrain.quantization.formats.names import named
from minitrain.quantization.formats.weight import QuantizedWeight


@dataclass(frozen=True)
class Rounded:
    """A quantized matrix, and the minimum subtracted from each row."""

    held: QuantizedWeight
    lowest: Tensor

    @classmethod
    def of(cls, rows: Tensor, bits: int) -> Rounded:
        lowest = rows.amin(dim=1, keepdim=True).float()
        return cls(named(f"int{bits}z-row").quantize(rows - lowest), lowest)

    def restored(self) -> Tensor:
        return self.held.dequantize() + self.lowest

    @property
    def nbytes(self) -> int:
        return self.held.nbytes + self.lowest.nbytes


class QuantizedCache:
    """All rows have equal length. A group of `group` tokens is quantized together, once `residual`
    newer tokens follow it."""

    def __init__(
        self,
        config: ModelConfig,
        rows: int,
        bits: int = 4,
        group: int = 32,
        residual: int = 32,
        device: torch.device | str = "cpu",
    ) -> None:
        if as_whole(bits) not in (8, 4):
            raise InputError(f"{bits} bits: keys and values are held in 8 or 4")
        check_whole("group", group)
        if as_whole(residual) is None or residual < 0:
            raise InputError(f"residual is {residual}: give a whole number, 0 or more")
        self.bits, self.group, self.residual = bits, group, residual
        self.window, self.device = config.window, device
        self.keys: list[list[Rounded]] = [[] for _ in range(config.layers)]
        self.values: list[list[Rounded]] = [[] for _ in range(config.layers)]
        self.new: dict[int, tuple[Tensor, Tensor]] = {}  # layer -> (B, K, n, C) each
        self.lengths = [0] * rows

    @classmethod
    def of(cls, model: Transformer, rows: int, **options: int) -> QuantizedCache:
        """A cache on the model's device."""
        return cls(model.config, rows, **options, device=model.embed.weight.device)

    @property
    def nbytes(self) -> int:
        """Bytes held now in codes, ranges and unquantized tokens."""
        rounded = [part for layers in (self.keys, self.values) for each in layers for part in each]
        full = [tensor for pair in self.new.values() for tensor in pair]
        return sum(one.nbytes for one in (*rounded, *full))

    def reader(self, new: int) -> QuantizedReader:
        return QuantizedReader(self, new)

    def append(self, layer: int, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """k and v (B, K, T, C) -> all keys and values so far, (B, K, length + T, C)."""
        if layer in self.new:
            k, v = (torch.cat(pair, dim=2) for pair in zip(self.new[layer], (k, v)))
        self.new[layer] = k, v
        shape = {"b": k.shape[0], "kv": k.shape[1]}
        keys = [
            rearrange(part.restored(), "(b kv c) t -> b kv t c", **shape).to(k.dtype)
            for part in self.keys[layer]
        ]
        values = [
            rearrange(part.restored(), "(b kv t) c -> b kv t c", **shape).to(v.dtype)
            for part in self.values[layer]
        ]
        return torch.cat((*keys, k), dim=2), torch.cat((*values, v), dim=2)

    def grow(self, new: int) -> None:
        """After a pass: quantizes the groups that are now old enough."""
        self.lengths = [length + new for length in self.lengths]
        for layer, (k, v) in self.new.items():
            while k.shape[2] >= self.group + self.residual:
                (old_k, k), (old_v, v) = (
                    z.split([self.group, z.shape[2] - self.group], dim=2) for z in (k, v)
                )
                channels = rearrange(old_k, "b kv t c -> (b kv c) t")
                tokens = rearrange(old_v, "b kv t c -> (b kv t) c")
                self.keys[layer].append(Rounded.of(channels, self.bits))
                self.values[layer].append(Rounded.of(tokens, self.bits))
            self.new[layer] = k.contiguous(), v.contiguous()


class QuantizedReader:
    """One pass; see `forward.Reader`."""

    def __init__(self, cache: QuantizedCache, new: int) -> None:
        self.cache = cache
        start = cache.lengths[0]
        self.places = torch.arange(start, start + new, device=cache.device)  # (T,)
        self.positions = self.places.expand(len(cache.lengths), -1)  # (B, T)

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """q (B, H, T, C), k and v (B, K, T, C) -> (B, H, T, C)."""
        keys, values = self.cache.append(layer, k, v)
        distance = self.places[:, None] - torch.arange(keys.shape[2], device=q.device)  # (T, S)
        seen = near(distance, self.cache.window)
        grouped = q.shape[1] != k.shape[1]
        return F.scaled_dot_product_attention(q, keys, values, attn_mask=seen, enable_gqa=grouped)
