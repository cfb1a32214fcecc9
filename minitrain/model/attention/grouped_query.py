"""Causal grouped-query attention: a token reads itself and the tokens before it.

H/K query heads share one key/value head: quality hardly suffers, and the keys and values that a
server keeps for every token of every user are H/K times fewer. `attention_naive` is the
definition; `attention` is PyTorch's fused kernel, which never materializes the (T, T) scores.

Cost a layer: 4·B·H·T²·C FLOPs forward, of which the fused kernel skips the masked half; the naive
one keeps B·H·T² weights for backward, the fused one q, k, v and out, B·T·(2H + 2K)·C.
Papers: Ainslie et al., arXiv 2305.13245 (GQA); Dao et al., 2205.14135 (FlashAttention). Lab: e01.
Shapes: B batch  T tokens  D width  H query heads  K key/value heads  C head size.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from einops import einsum, rearrange, repeat
from torch import Tensor, nn

from minitrain.model.attention.mask import Mask
from minitrain.model.config import ModelConfig
from minitrain.model.rope import Rotation, rotate


def attention_naive(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None) -> Tensor:
    """q (B, H, T, C), k and v (B, K, T, C) -> (B, H, T, C). Query head h reads head h // (H/K).

    mask (T, T) or (B, 1, T, T) is added to the scores; None is causal.
    """
    heads, kv_heads, size = q.shape[1], k.shape[1], q.shape[-1]
    k = repeat(k, "b kv t c -> b (kv group) t c", group=heads // kv_heads)  # (B, H, T, C)
    v = repeat(v, "b kv t c -> b (kv group) t c", group=heads // kv_heads)  # (B, H, T, C)
    if mask is None:
        mask = causal_mask(q)
    scores = einsum(q, k, "b h i c, b h j c -> b h i j") / size**0.5  # (B, H, T, T)
    weights = (scores + mask).softmax(dim=-1)  # each row sums to 1
    return einsum(weights, v, "b h i j, b h j c -> b h i c")


def attention(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None) -> Tensor:
    """`attention_naive` by PyTorch's fused kernel."""
    grouped = q.shape[1] != k.shape[1]
    return F.scaled_dot_product_attention(
        q, k, v, attn_mask=mask, is_causal=mask is None, enable_gqa=grouped
    )


def causal_mask(q: Tensor) -> Tensor:
    """q (B, H, T, C) -> (T, T): 0 where row i may read column j <= i, -inf elsewhere."""
    length = q.shape[2]
    return torch.full((length, length), -torch.inf, dtype=q.dtype, device=q.device).triu(1)


def attention_mask(x: Tensor, documents: Tensor | None, window: int | None) -> Tensor | None:
    """x (B, T, D), documents (B, T) -> 0 where a token may read, -inf elsewhere, in x's dtype.

    (B, 1, T, T) with documents, (T, T) for a window alone, and None for plain causal attention, for
    which the fused kernel skips what is masked. Made once per forward for all layers: a boolean
    mask would be converted to this one in each layer.
    """
    length = x.shape[1]
    windowed = window is not None and window < length
    if documents is None and not windowed:
        return None
    place = torch.arange(length, device=x.device)
    distance = rearrange(place, "i -> i 1") - place  # (T, T): how far j is behind i
    readable = distance >= 0
    if windowed:
        readable = readable & (distance < window)
    if documents is not None:
        same = rearrange(documents, "b i -> b 1 i 1") == rearrange(documents, "b j -> b 1 1 j")
        readable = readable & same  # (B, 1, T, T)
    return torch.zeros_like(readable, dtype=x.dtype).masked_fill_(~readable, -torch.inf)


Kernel = Callable[[Tensor, Tensor, Tensor, "Tensor | Mask | None"], Tensor]


class Attention(nn.Module):
    """The query, key and value projections, attention, and the output projection.

    `kernel` computes q, k, v, mask -> out; `transformer.exchange_attention` can replace `attention`
    by another one, with its own kind of mask.
    """

    def __init__(self, config: ModelConfig):
        super().__init__()
        width, self.head_size = config.hidden_size, config.head_size
        queries, keys = config.heads * config.head_size, config.kv_heads * config.head_size
        self.q = nn.Linear(width, queries, bias=config.qkv_bias)
        self.k = nn.Linear(width, keys, bias=config.qkv_bias)
        self.v = nn.Linear(width, keys, bias=config.qkv_bias)
        self.o = nn.Linear(queries, width, bias=False)
        self.kernel: Kernel = attention

    def forward(self, x: Tensor, turns: Rotation, mask: Tensor | Mask | None = None) -> Tensor:
        """x (B, T, D) -> (B, T, D)."""
        return self.o(self.attend(self.q(x), self.k(x), self.v(x), turns, mask))

    def attend(
        self, q: Tensor, k: Tensor, v: Tensor, turns: Rotation, mask: Tensor | None
    ) -> Tensor:
        """q (B, T, H·C), k and v (B, T, K·C) -> (B, T, H·C): the heads' outputs."""
        q, k, v = (self.split(z) for z in (q, k, v))
        q, k = rotate(q, turns), rotate(k, turns)  # (B, T, H, C), (B, T, K, C)
        q, k, v = (rearrange(z, "b t h c -> b h t c") for z in (q, k, v))
        out = self.kernel(q, k, v, mask)  # (B, H, T, C)
        return rearrange(out, "b h t c -> b t (h c)")

    def split(self, z: Tensor) -> Tensor:
        return rearrange(z, "b t (h c) -> b t h c", c=self.head_size)
