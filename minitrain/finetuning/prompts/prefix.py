"""Prefix tuning: keys and values that no token made, before those of the text, in every layer.

    attention(q, [prefix keys; k], [prefix values; v])

The text's tokens stand n places later. Keys are learned as attention reads them, after the
rotation. Li and Liang found them hard to train directly and made all of them by one small MLP of n
vectors, which `reparametrised` has and `drop_mlp` takes away when it has done its work; P-tuning v2
trains them directly. A prefix of zeros is not nothing: its keys take their share of the softmax.
Trained: n·L·2·K·C numbers, or the MLP's; a token costs attention's FLOPs to n more keys. Not
merged: no weight says the same. Papers: Li and Liang, arXiv 2101.00190; Liu et al., 2110.07602.
Shapes: n learned tokens  L layers  K key/value heads  C head size  M width of the MLP.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from einops import rearrange
from torch import Tensor, nn

from minitrain.finetuning.layer import place_of
from minitrain.finetuning.prompts.looking import Shifted
from minitrain.model.attention.grouped_query import Kernel
from minitrain.model.transformer import Transformer

STD = 0.02


class Prefix(nn.Module):
    """All layers' keys and values: `table` (n, L·2·K·C), or an MLP that makes it."""

    def __init__(
        self,
        model: Transformer,
        count: int,
        width: int | None = None,
        generator: torch.Generator | None = None,
    ) -> None:
        """`width` M of the MLP; None: no MLP."""
        super().__init__()
        config, place = model.config, place_of(model.embed)
        self.layers, self.heads = config.layers, config.kv_heads
        self.enabled, size = True, config.kv_heads * config.head_size
        made = config.layers * 2 * size

        def drawn(std: float, *shape: int) -> nn.Parameter:
            numbers = torch.randn(shape, generator=generator, dtype=place["dtype"])
            return nn.Parameter((numbers * std).to(**place))

        if width is None:
            self.table = drawn(STD, count, made)
            return
        self.vectors = drawn(1.0, count, size)  # (n, K·C)
        self.inner = drawn(size**-0.5, width, size)
        self.inner_bias = nn.Parameter(torch.zeros(width, **place))
        self.outer = drawn(STD / math.sqrt(width), made, width)
        self.outer_bias = nn.Parameter(torch.zeros(made, **place))

    @property
    def reparametrised(self) -> bool:
        return "table" not in self._parameters

    @property
    def count(self) -> int:
        return len(self.vectors if self.reparametrised else self.table)

    def rows(self, features: slice = slice(None)) -> Tensor:
        """Those features of the table, (n, L·2·K·C)."""
        if not self.reparametrised:
            return self.table[:, features]
        inside = torch.tanh(F.linear(self.vectors, self.inner, self.inner_bias))  # (n, M)
        return F.linear(inside, self.outer[features], self.outer_bias[features])

    def of_layer(self, layer: int) -> tuple[Tensor, Tensor]:
        """Keys and values (K, n, C) of one layer."""
        size = (self.outer if self.reparametrised else self.table.T).shape[0] // self.layers
        rows = self.rows(slice(layer * size, (layer + 1) * size))  # (n, 2·K·C)
        return rearrange(rows, "n (two h c) -> two h n c", two=2, h=self.heads).unbind()

    @torch.no_grad()
    def drop_mlp(self) -> None:
        """Keeps what the MLP makes, and it no longer; an optimizer made before is of no use."""
        if self.reparametrised:
            table = nn.Parameter(self.rows().clone())
            for name in ("vectors", "inner", "inner_bias", "outer", "outer_bias"):
                delattr(self, name)
            self.table = table


class PrefixKernel:
    """A layer's attention kernel, given the prefix's keys and values before the text's; `heads`:
    which of them, where it is one rank's and reads its own."""

    def __init__(
        self, prefix: Prefix, layer: int, kernel: Kernel, heads: Sequence[int] | None = None
    ) -> None:
        self.prefix, self.layer, self.kernel, self.heads = prefix, layer, kernel, heads

    def __call__(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None) -> Tensor:
        """q (B, H, T, C), k and v (B, K, T, C), mask (..., T, n+T) -> (B, H, T, C)."""
        if not self.prefix.enabled:
            return self.kernel(q, k, v, mask)
        keys, values = (z.to(k.dtype).expand(len(k), -1, -1, -1) for z in self._own())
        k, v = torch.cat((keys, k), dim=2), torch.cat((values, v), dim=2)  # (B, K, n+T, C)
        return self.kernel(q, k, v, mask)

    def _own(self) -> tuple[Tensor, Tensor]:
        own = self.prefix.of_layer(self.layer)
        return own if self.heads is None else tuple(z[list(self.heads)] for z in own)


def add_prefix(model: Transformer, prefix: Prefix, heads: Sequence[int] | None = None) -> None:
    """Puts it before every layer, by the slots that a Transformer has for it, and keeps it as
    `model.soft_prompt`. `prefix`: whatever has `of_layer`, `count` and `enabled`."""
    for layer, block in enumerate(model.blocks):
        block.attention.kernel = PrefixKernel(prefix, layer, block.attention.kernel, heads)
    model.soft_prompt = prefix
    model.look_around = Shifted(model.look_around, prefix.count, in_stream=False, switch=prefix)
