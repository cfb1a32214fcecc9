"""A layer's attention over a cache: new tokens are projected, what came before is read.

Shapes: B texts  T new tokens  D width  H query heads  K key/value heads  C head size  S room.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from minitrain.model.attention.grouped_query import Attention
from minitrain.model.rope import rotate, rotation
from minitrain.model.transformer import Transformer

Rope = Callable[[Tensor, Tensor], Tensor]


def cached_attention(
    layer: Attention, x: Tensor, rope: Rope, keys: Tensor, values: Tensor, length: int
) -> Tensor:
    """x (B, T, D) -> (B, T, D); keys and values (B, K, S, C) hold `length` tokens, and T more then.

    `rope(z, positions)` turns z (B, T, heads, C) by positions (T,).
    """
    end = length + x.shape[1]
    positions = torch.arange(length, end)  # (T,)
    q, k, v = (layer.split(z(x)) for z in (layer.q, layer.k, layer.v))  # (B, T, heads, C)
    keys[:, :, length:end] = rope(k, positions).transpose(1, 2)
    values[:, :, length:end] = v.transpose(1, 2)
    seen = positions[:, None] >= torch.arange(end)  # (T, end)
    out = torch.nn.functional.scaled_dot_product_attention(
        rope(q, positions).transpose(1, 2),
        keys[:, :, :end],
        values[:, :, :end],
        attn_mask=seen,
        enable_gqa=True,
    )  # (B, H, T, C)
    return layer.o(out.transpose(1, 2).flatten(2))


Kernel = Callable[[Attention, Tensor, Rope, Tensor, Tensor, int], Tensor]


class Cache:
    """Room for B texts of up to S tokens in every layer, and how many tokens it holds."""

    def __init__(self, model: Transformer, texts: int, room: int) -> None:
        config, weight = model.config, model.embed.weight
        shape = (config.layers, 2, texts, config.kv_heads, room, config.head_size)
        self.layers = torch.zeros(shape, dtype=weight.dtype)
        self.length = 0


@torch.no_grad()
def read_on(model: Transformer, tokens: Tensor, cache: Cache, attend: Kernel) -> Tensor:
    """tokens (B, T), after what the cache holds -> logits (B, V) behind the last of them."""

    def rope(z: Tensor, positions: Tensor) -> Tensor:
        return rotate(z, rotation(model.config, positions, z.dtype))

    x = model.embed(tokens)  # (B, T, D)
    for block, (keys, values) in zip(model.blocks, cache.layers):
        normed = block.attention_norm(x)
        x = x + attend(block.attention, normed, rope, keys, values, cache.length)
        x = x + block.mlp(block.mlp_norm(x))
    cache.length += tokens.shape[1]
    return model.head(model.norm(x[:, -1]))
