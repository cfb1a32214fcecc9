"""Context parallelism as lab e02e writes it: places of tokens, two rings and two all-to-alls.

`places` (N, T/N) says which token of the text a rank holds, and where: it is the order of tokens,
their positions for RoPE, and, by each half's first place, the causal mask between two ranks. Two
consecutive runs a rank, of T/2N tokens each, hold both for zig-zag and for contiguous order.
`ring.py` does the same with windows and documents. Costs and papers: there, and ulysses.py.
Lab: e02e. Shapes: B batch  T tokens  H query heads  K key/value heads  C head size  N ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from einops import rearrange
from torch import Tensor

from minitrain.errors import InputError, divide
from minitrain.model.attention.mask import Mask
from minitrain.model.attention.tiled import exact_dtype, tiled_attention, tiled_forward
from minitrain.parallel.collectives.overlapped import around, pass_on
from minitrain.ranks.group import Group


def zigzag(length: int, size: int) -> tuple[Tensor, Tensor]:
    """-> places (N, T/N): rank r holds chunks r and 2N-1-r of 2N; and inverse (T,), which puts all
    ranks' tokens, side by side in rank order, back into the order of the text."""
    divide("tokens", length, 2 * size, "chunks")
    chunks = torch.arange(length).view(2 * size, -1)  # (2N, T/2N)
    places = torch.cat((chunks[:size], chunks[size:].flip(0)), dim=1)
    return places, places.flatten().argsort()


def halves(places: Tensor, rank: int, owner: int) -> Iterator[tuple[slice, slice, int]]:
    """(rows, keys, offset) of each half of the rank's queries with each half of the owner's keys;
    the first query stands `offset` places behind the first key, before it where that is < 0."""
    half = places.shape[1] // 2
    both = slice(0, half), slice(half, 2 * half)
    for rows in both:
        for keys in both:
            yield rows, keys, int(places[rank, rows][0] - places[owner, keys][0])


def merge(out: Tensor, lse: Tensor, new_out: Tensor, new_lse: Tensor) -> tuple[Tensor, Tensor]:
    """Attention to two sets of keys -> to their union; out (B, H, T, C), lse (B, H, T).

    Each is weighed by its share exp(lse - lse of both). A set in which a row reads nothing has
    lse = -inf and weighs 0, also where both are such.
    """
    both = torch.logaddexp(lse, new_lse)
    base = both.masked_fill(both == -torch.inf, 0)  # -inf - -inf would be NaN
    old_share, new_share = ((z - base).exp()[..., None] for z in (lse, new_lse))
    return out * old_share + new_out * new_share, both


def nothing_read(q: Tensor) -> tuple[Tensor, Tensor]:
    """out and lse of queries that read no key yet; in float32 at least, as all sums are."""
    out = torch.zeros_like(q, dtype=exact_dtype(q))
    return out, out.new_full(q.shape[:3], -torch.inf)


def ring_forward(group: Group, places: Tensor, q: Tensor, kv: Tensor) -> tuple[Tensor, Tensor]:
    """q (B, H, T/N, C), kv (2, B, K, T/N, C), a rank's own -> out like q, and lse (B, H, T/N)."""
    out, lse = nothing_read(q)
    for owner, (k, v) in around(group, kv):
        for rows, keys, offset in halves(places, group.rank, owner):
            if offset >= 0:  # else every key comes after every query
                found = tiled_forward(q[:, :, rows], k[:, :, keys], v[:, :, keys], Mask(offset))
                merged = merge(out[:, :, rows], lse[:, :, rows], *found)
                out[:, :, rows], lse[:, :, rows] = merged
    return out.to(q.dtype), lse


def ring_backward(
    group: Group, kv: Tensor, gradients: Callable[[int, Tensor], tuple[Tensor, Tensor]]
) -> tuple[Tensor, Tensor]:
    """-> dq, and dkv like kv, of the rank's own tokens. `gradients(owner, block)` gives this rank's
    dq from a block, and its part of the block's gradient, which goes on to the block's next rank.
    """
    dq, own, coming = 0, None, None
    for owner, block in around(group, kv):
        dq_part, d_block = gradients(owner, block)
        dq = dq + dq_part
        if owner == group.rank:
            own = d_block  # waits at home for the others' parts
        else:
            if coming is not None:
                d_block = d_block + coming()
            coming = pass_on(group, d_block)
    return dq, own if coming is None else own + coming()


def ulysses(
    q: Tensor, k: Tensor, v: Tensor, size: int, exchange: Callable[[Tensor], Tensor]
) -> Tensor:
    """q (B, H, T/N, C), k and v (B, K, T/N, C) -> (B, H, T/N, C), tokens in contiguous order.

    `exchange`, a differentiable all-to-all, takes (N, …), piece r for rank r, and gives (N, …),
    piece r from rank r.
    """
    copies = key_copies(q.shape[1], k.shape[1], size)
    k, v = (z.repeat_interleave(copies, dim=1) for z in (k, v))
    pieces = [rearrange(z, "b (n h) t c -> n b h t c", n=size) for z in (q, k, v)]
    count = [piece.shape[2] for piece in pieces]
    parts = exchange(torch.cat(pieces, dim=2))  # (N, B, …, T/N, C)
    whole = rearrange(parts, "n b h t c -> b h (n t) c").split(count, dim=1)
    out = tiled_attention(*whole, Mask(0))  # (B, H/N, T, C)
    parts = exchange(rearrange(out, "b h (n t) c -> n b h t c", n=size))
    return rearrange(parts, "n b h t c -> b (n h) t c")


def key_copies(heads: int, kv_heads: int, ranks: int) -> int:
    """To how many ranks each key/value head goes: to all whose query heads read it."""
    if heads % ranks or (kv_heads % ranks and ranks % kv_heads):
        raise InputError(
            f"Ulysses over {ranks} ranks with {heads} heads and {kv_heads} key/value heads: ranks "
            "must divide the heads, and divide the key/value heads or be a multiple of them; "
            "a ring takes any number"
        )
    return max(1, ranks // kv_heads)
