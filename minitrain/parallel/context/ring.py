"""Context parallelism: each rank holds T/N tokens of every sequence, and keys are sent to queries.

Only attention mixes tokens, so all else is computed on T/N of them. A ring passes keys and values
on, N-1 times, while each rank computes with the block it has; attention to each block is merged
with the result so far by the log-sum-exp of the scores:

    link      |   kv 1  |    kv 2    |                     forward, N = 3
    compute   |  own kv |  kv of r-1 |  kv of r-2 |

    link      |   kv 1  |    kv 2    | dkv of r-1 | dkv of r-2 |     backward: a block's gradient
    compute   |  own kv |  kv of r-1 |  kv of r-2 |                  goes on with it, gathers each
                                                                     rank's part, and comes home

S = 2·B·K·T/N·C elements are one rank's keys and values (K heads, never repeated for H). Sent:

    sent a layer    forward     backward                         keys and values held, forward
    ring            (N-1)·S     2(N-1)·S, half of it float32     2·S: one here, one on its way
    gather.py       (N-1)·S     (N-1)·S                          N·S
    Ulysses         see gather.py: less with more ranks

`ring_forward` and `ring_backward` are the two rings as lab e02e writes them, for tokens at given
`places`; `ring_attention` runs both under autograd, with windows and documents.
Papers: Liu et al., arXiv 2310.01889; Brandon et al., 2311.09431; Llama 3, 2407.21783. Lab: e02e.
Shapes: B batch  T tokens  H query heads  K key/value heads  C head size  N ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import torch
from torch import Tensor

from minitrain.errors import InputError, divide
from minitrain.model.attention.mask import Mask
from minitrain.model.attention.tiled import (
    check_heads,
    exact_dtype,
    row_products,
    tiled_backward,
    tiled_forward,
)
from minitrain.parallel.collectives.overlapped import around, pass_on
from minitrain.parallel.context.split import chunk_slice, chunks_of
from minitrain.ranks.group import Group

Meeting = tuple[slice, slice, Mask]  # some of my queries, some of the owner's keys, what is read


def zigzag(length: int, size: int) -> tuple[Tensor, Tensor]:
    """-> places (N, T/N): rank r holds chunks r and 2N-1-r of 2N; and inverse (T,), which puts all
    ranks' tokens, concatenated in rank order, back into sequence order."""
    divide("tokens", length, 2 * size, "chunks")
    chunks = torch.arange(length).view(2 * size, -1)  # (2N, T/2N)
    places = torch.cat((chunks[:size], chunks[size:].flip(0)), dim=1)
    return places, places.flatten().argsort()


def merge(out: Tensor, lse: Tensor, new_out: Tensor, new_lse: Tensor) -> tuple[Tensor, Tensor]:
    """Merges attention to two sets of keys; out (B, H, T, C), lse (B, H, T).

    Each is weighted by exp(lse - lse of both). A row that reads no key of a set has lse = -inf
    there and weight 0, even if it reads no key of either.
    """
    both = torch.logaddexp(lse, new_lse)
    base = both.masked_fill(both == -torch.inf, 0)  # -inf - -inf would be NaN
    old_share, new_share = ((z - base).exp()[..., None] for z in (lse, new_lse))
    return out * old_share + new_out * new_share, both


def ring_forward(group: Group, places: Tensor, q: Tensor, kv: Tensor) -> tuple[Tensor, Tensor]:
    """q (B, H, T/N, C), kv (2, B, K, T/N, C), this rank's -> out like q, and lse (B, H, T/N).

    `places` (N, T/N) gives each rank's token positions: two runs of T/2N consecutive tokens a rank,
    as in zig-zag and in contiguous order.
    """

    def meetings(owner: int) -> Iterator[Meeting]:
        half = q.shape[2] // 2
        both = slice(0, half), slice(half, 2 * half)
        for rows in both:
            for keys in both:
                offset = int(places[group.rank, rows][0] - places[owner, keys][0])
                if offset >= 0:  # else every key comes after every query
                    yield rows, keys, Mask(offset)

    return attend_around(group, q, kv, meetings)


def attend_around(
    group: Group, q: Tensor, kv: Tensor, meetings: Callable[[int], Iterator[Meeting]]
) -> tuple[Tensor, Tensor]:
    """The ring of keys: `meetings(owner)` pairs this rank's queries with the owner's keys."""
    out = torch.zeros_like(q, dtype=exact_dtype(q))  # accumulates in float32 at least
    lse = out.new_full(q.shape[:3], -torch.inf)  # no key is read yet
    for owner, (k, v) in around(group, kv):
        for rows, keys, mask in meetings(owner):
            found = tiled_forward(q[:, :, rows], k[:, :, keys], v[:, :, keys], mask)
            out[:, :, rows], lse[:, :, rows] = merge(out[:, :, rows], lse[:, :, rows], *found)
    return out.to(q.dtype), lse


def ring_backward(
    group: Group, kv: Tensor, gradients: Callable[[int, Tensor], tuple[Tensor, Tensor]]
) -> tuple[Tensor, Tensor]:
    """-> this rank's dq, and its dkv, shaped like kv. `gradients(owner, block)` returns this rank's
    dq from a block, and its part of the block's gradient, which is sent on with the block.
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


# ---- under autograd, with windows and documents ----


def ring_attention(
    group: Group, order: str, q: Tensor, k: Tensor, v: Tensor, mask: Mask | None = None
) -> Tensor:
    """q (B, H, T/N, C), k and v (B, K, T/N, C) -> (B, H, T/N, C).

    `mask` covers the whole sequence; None: causal. One rank's keys and values are held at a time,
    and the next are in flight.
    """
    check_heads(q, k, v)
    pieces = len(chunks_of(group.rank, group.size, order))
    if q.shape[2] % pieces or q.shape[2] != k.shape[2]:
        raise InputError(
            f"a ring over {q.shape[2]} queries and {k.shape[2]} keys a rank, in {order} order: it "
            f"needs as many keys as queries, and a multiple of {pieces}; cut with split_sequence"
        )
    return _Ring.apply(group, order, q, k, v, mask or Mask(0))


class _Ring(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx, group: Group, order: str, q: Tensor, k: Tensor, v: Tensor, mask: Mask
    ) -> Tensor:
        kv = torch.stack((k, v))  # one message
        ctx.group, ctx.meetings = group, partial(blocks, group, order, q.shape[2], mask)
        out, lse = attend_around(group, q, kv, ctx.meetings)
        ctx.save_for_backward(q, kv, out, lse)
        return out

    @staticmethod
    def backward(ctx, d_out: Tensor) -> tuple[Tensor | None, ...]:
        q, kv, out, lse = ctx.saved_tensors
        asked = d_out, lse, row_products(d_out, out)

        def gradients(owner: int, block: Tensor) -> tuple[Tensor, Tensor]:
            dq, d_block = (torch.zeros_like(z, dtype=lse.dtype) for z in (q, block))
            for rows, keys, mask in ctx.meetings(owner):
                given = q[:, :, rows], *block[:, :, :, keys], *(z[:, :, rows] for z in asked)
                d_rows, dk, dv = tiled_backward(*given, mask)
                dq[:, :, rows] += d_rows
                d_block[0][:, :, keys] += dk
                d_block[1][:, :, keys] += dv
            return dq, d_block

        dq, (dk, dv) = ring_backward(ctx.group, kv, gradients)
        return None, None, dq.to(q.dtype), dk.to(kv.dtype), dv.to(kv.dtype), None


def blocks(group: Group, order: str, length: int, mask: Mask, owner: int) -> Iterator[Meeting]:
    """The pairs of query and key chunks that attend: the place of each in the rank's `length`
    tokens, and the mask between them. Later chunks are never read."""
    mine, theirs = (chunks_of(rank, group.size, order) for rank in (group.rank, owner))
    chunk = length // len(mine)
    for i, a in enumerate(mine):
        for j, b in enumerate(theirs):
            if b <= a:
                part = mask.part(chunk_slice(a, chunk), chunk_slice(b, chunk))
                yield chunk_slice(i, chunk), chunk_slice(j, chunk), part
