"""Block-sparse attention: each block of queries reads a few blocks of keys, not all before it.

    sliding window   the w blocks up to one's own; L layers reach L·w blocks back
    Longformer       and the first g blocks, which every token reads
    BigBird          and r blocks drawn at random: paths between all tokens become short

    window 2    x . . . .      Longformer   x . . . .      BigBird   x . . . .
                x x . . .      (g = 1)      x x . . .      (r = 1)   x x . . .
                . x x . .                   x x x . .                x x x . .
                . . x x .                   x . x x .                x x x x .
                . . . x x                   x . . x x                x . x x x

`sparse_attention_naive` masks a full (T, T) matrix: right, and nothing is saved. The real one
gathers, for each block of queries, the keys that it reads: 4·T·n·(w + g + r)·C FLOPs a head for
blocks of n tokens. Causal, as decoders are: global tokens read no more than others here.
Papers: Beltagy et al., arXiv 2004.05150; Zaheer et al., 2007.14062. Lab: e14.
Shapes: B batch  H heads  T tokens  C head size  M blocks  n tokens a block  R blocks read.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from einops import rearrange
from torch import Tensor

from minitrain.errors import InputError
from minitrain.model.attention.grouped_query import attention_naive


def window_blocks(blocks: int, window: int) -> Tensor:
    """(M, M) bool: True where block i reads block j, one of the `window` up to its own."""
    place = torch.arange(blocks)
    distance = place[:, None] - place
    return (distance >= 0) & (distance < window)


def longformer_blocks(blocks: int, window: int, first: int) -> Tensor:
    """(M, M) bool: the window, and the `first` blocks of the sequence."""
    place = torch.arange(blocks)
    return window_blocks(blocks, window) | ((place < first) & (place <= place[:, None]))


def bigbird_blocks(
    blocks: int, window: int, first: int, drawn: int, generator: torch.Generator | None = None
) -> Tensor:
    """(M, M) bool: Longformer's, and `drawn` of the others before it, as far as there are any."""
    reads = longformer_blocks(blocks, window, first)
    others = torch.ones_like(reads).tril() & ~reads
    order = torch.rand(reads.shape, generator=generator).masked_fill(~others, 2.0)
    rank = order.argsort(dim=1).argsort(dim=1)
    return reads | (others & (rank < drawn))


def sparse_attention_naive(q: Tensor, k: Tensor, v: Tensor, blocks: Tensor) -> Tensor:
    """q, k, v (B, H, T, C), blocks (M, M) bool, M dividing T -> (B, H, T, C)."""
    size = block_size(q, blocks)
    readable = blocks.repeat_interleave(size, 0).repeat_interleave(size, 1).tril()
    mask = torch.zeros_like(readable, dtype=q.dtype).masked_fill(~readable, -torch.inf)
    return attention_naive(q, k, v, mask)


def sparse_attention(q: Tensor, k: Tensor, v: Tensor, blocks: Tensor) -> Tensor:
    """`sparse_attention_naive`, of the blocks that are read and no others."""
    size = block_size(q, blocks)
    most = int(blocks.sum(dim=1).max())  # R
    found = blocks.int().topk(most, dim=1)  # (M, R): which, and whether it is read at all
    q, k, v = (rearrange(z, "b h (m n) c -> b h m n c", n=size) for z in (q, k, v))
    k, v = (z[:, :, found.indices].flatten(3, 4) for z in (k, v))  # (B, H, M, R·n, C)
    key = (found.indices[..., None] * size + torch.arange(size)).flatten(1)  # (M, R·n): its token
    query = torch.arange(blocks.shape[0] * size).unflatten(0, (-1, size))  # (M, n)
    read = found.values.bool().repeat_interleave(size, 1)[:, None]  # (M, 1, R·n)
    mask = read & (key[:, None] <= query[..., None])  # (M, n, R·n)
    out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)  # (B, H, M, n, C)
    return out.flatten(2, 3)


def block_size(q: Tensor, blocks: Tensor) -> int:
    """Tokens a block; InputError if the tokens do not divide, or a token could not read itself."""
    if q.shape[2] % len(blocks):
        raise InputError(
            f"{q.shape[2]} tokens do not divide into {len(blocks)} blocks: pad the sequence, or "
            "make a mask of as many blocks as fit"
        )
    if not blocks.diagonal().all():
        raise InputError("a block that does not read itself: set the diagonal of the mask to True")
    return q.shape[2] // len(blocks)
