"""Context parallelism: each rank holds T/N tokens of every sequence, and keys travel to queries.

Only attention mixes tokens, so all else is computed on T/N of them. A ring passes the keys and
values on, N-1 times, while each rank computes with those it has; what its queries found among one
rank's keys is merged with what they found before, by the log-sum-exp of their scores:

    link      |   kv 1  |    kv 2    |                     forward, N = 3
    compute   |  own kv |  kv of r-1 |  kv of r-2 |

    link      |   kv 1  |    kv 2    | dkv of r-1 | dkv of r-2 |     backward: a block's gradient
    compute   |  own kv |  kv of r-1 |  kv of r-2 |                  goes on with it, gathers each
                                                                     rank's part, and comes home

S = 2·B·K·T/N·C elements (a rank's keys and values, of K heads: never repeated for H) are sent:

    sent a layer    forward     backward                         keys and values held, forward
    ring            (N-1)·S     2(N-1)·S, half of it float32     2·S: one here, one on its way
    gather.py       (N-1)·S     (N-1)·S                          N·S
    ulysses.py      its own formula: less with more ranks

Papers: Liu et al., arXiv 2310.01889; Brandon et al., 2311.09431; Llama 3, 2407.21783. Lab: e02e.
Shapes: B batch  T tokens  H query heads  K key/value heads  C head size  N ranks.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from minitrain.errors import InputError
from minitrain.model.attention.mask import Mask
from minitrain.model.attention.tiled import check_heads, row_products, tiled_backward, tiled_forward
from minitrain.parallel.collectives.overlapped import around, pass_on
from minitrain.parallel.context.plain import merge, nothing_read
from minitrain.parallel.context.split import chunk_slice, chunks_of
from minitrain.ranks.group import Group


def ring_attention(
    group: Group, order: str, q: Tensor, k: Tensor, v: Tensor, mask: Mask | None = None
) -> Tensor:
    """q (B, H, T/N, C), k and v (B, K, T/N, C) -> (B, H, T/N, C).

    `mask` is that of the whole sequence, and causal where it is None. One rank's keys and values
    are here at a time, and the next on their way.
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
        out, lse = nothing_read(q)
        for owner, (keys, values) in around(group, kv):
            for rows, columns, part in blocks(group, order, owner, q.shape[2], mask):
                found = tiled_forward(
                    q[:, :, rows], keys[:, :, columns], values[:, :, columns], part
                )
                out[:, :, rows], lse[:, :, rows] = merge(out[:, :, rows], lse[:, :, rows], *found)
        out = out.to(q.dtype)
        ctx.save_for_backward(q, kv, out, lse)
        ctx.around = group, order, mask
        return out

    @staticmethod
    def backward(ctx, d_out: Tensor) -> tuple[Tensor | None, ...]:
        (q, kv, out, lse), (group, order, mask) = ctx.saved_tensors, ctx.around
        delta = row_products(d_out, out)
        dq, coming = torch.zeros_like(q, dtype=lse.dtype), None
        for owner, (keys, values) in around(group, kv):
            d_kv = torch.zeros_like(kv, dtype=lse.dtype)
            for rows, columns, part in blocks(group, order, owner, q.shape[2], mask):
                asked = (z[:, :, rows] for z in (d_out, lse, delta))
                d_rows, dk, dv = tiled_backward(
                    q[:, :, rows], keys[:, :, columns], values[:, :, columns], *asked, part
                )
                dq[:, :, rows] += d_rows
                d_kv[0][:, :, columns] += dk
                d_kv[1][:, :, columns] += dv
            if owner == group.rank:
                own = d_kv  # waits at home for the others' parts
                continue
            if coming is not None:
                d_kv += coming()  # the parts of the ranks that the block has been to
            coming = pass_on(group, d_kv)
        dk, dv = own if coming is None else own + coming()
        return None, None, dq.to(q.dtype), dk.to(kv.dtype), dv.to(kv.dtype), None


def blocks(
    group: Group, order: str, owner: int, length: int, mask: Mask
) -> Iterator[tuple[slice, slice, Mask]]:
    """The chunks of my queries and the owner's keys that meet: where each lies in the rank's
    `length` tokens, and the part of the whole mask between them. Later chunks are never read."""
    mine, theirs = (chunks_of(rank, group.size, order) for rank in (group.rank, owner))
    chunk = length // len(mine)
    for i, a in enumerate(mine):
        for j, b in enumerate(theirs):
            if b <= a:
                part = mask.part(chunk_slice(a, chunk), chunk_slice(b, chunk))
                yield chunk_slice(i, chunk), chunk_slice(j, chunk), part
