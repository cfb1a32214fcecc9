"""Tiled attention (FlashAttention): softmax(QKᵀ)V without materializing the (T, T) scores.

Each tile of queries visits the tiles of keys in turn and keeps, per row, the maximum score so far
m, the sum l of exp(score - m), and the output before division by l. When the maximum grows, earlier
sums are too large by a factor exp(new m - m): they are scaled down, as if the new m had always been
known. q, k, v, out and log l + m are saved for backward, which recomputes each tile of weights:
    P = exp(QKᵀ - (log l + m))      dS = P·(dO Vᵀ - rowsum(dO·O))

Cost a layer, causal: 2·B·H·T²·C FLOPs forward and 5·B·H·T²·C backward, 2.5 times (the scores are
computed twice). Saved: B·T·((2H + 2K)·C + H) elements. Papers: Milakov & Gimelshein, arXiv
1805.02867; Dao et al., 2205.14135; Dao, 2307.08691. Lab: e05.
Shapes: B batch  H query heads  K key/value heads  G = H/K  I, J queries and keys (of a tile: i, j)
C head size. Rows (g i) of one key/value head are adjacent: G heads read the keys without a copy.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from einops import rearrange
from torch import Tensor

from minitrain.errors import InputError
from minitrain.model.attention.mask import Mask

ROWS, COLUMNS = 256, 512  # of a tile: the scores of one head, 512 KiB in float32, stay in the cache


def tiled_attention(q: Tensor, k: Tensor, v: Tensor, mask: Mask | None = None) -> Tensor:
    """q (B, H, I, C), k and v (B, K, J, C) -> (B, H, I, C). 0 for a query with nothing to read.

    Without a mask it is causal, with the last query aligned with the last key.
    """
    check_heads(q, k, v)
    mask = (mask or Mask()).between(q.shape[2], k.shape[2])
    return Tiled.apply(q, k, v, mask, tiled_forward, tiled_backward)


class Tiled(torch.autograd.Function):
    """Makes a pair of functions like `tiled_forward` and `tiled_backward` one differentiable
    function."""

    @staticmethod
    def forward(
        ctx, q: Tensor, k: Tensor, v: Tensor, mask: Mask, forward: Callable, backward: Callable
    ) -> Tensor:
        out, lse = forward(q, k, v, mask)
        out = out.to(q.dtype)
        ctx.save_for_backward(q, k, v, out, lse)
        ctx.mask, ctx.gradients = mask, backward
        return out

    @staticmethod
    def backward(ctx, d_out: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, out, lse = ctx.saved_tensors
        grads = ctx.gradients(q, k, v, d_out, lse, row_products(d_out, out), ctx.mask)
        return *(grad.to(q.dtype) for grad in grads), None, None, None


def tiled_forward(q: Tensor, k: Tensor, v: Tensor, mask: Mask) -> tuple[Tensor, Tensor]:
    """-> out (B, H, I, C), and log Σ exp(score) of each row, (B, H, I): -inf if it reads nothing.

    Both are at least float32.
    """
    kv_heads, exact = k.shape[1], exact_dtype(q)
    out, lse = torch.empty_like(q, dtype=exact), q.new_empty(q.shape[:3], dtype=exact)
    for rows in tiles(range(q.shape[2]), ROWS):
        queries = _by_key_head(q[:, :, rows], kv_heads).to(exact) / q.shape[-1] ** 0.5
        total = torch.zeros_like(queries)  # (B, K, g i, C), to be divided by `mass`
        top = queries.new_full(queries.shape[:3], -torch.inf)  # the maximum score so far
        mass = torch.zeros_like(top)  # Σ exp(score - top)
        for columns, readable in _read_tiles(mask, rows, k):
            scores = _scores(queries, k[:, :, columns].to(exact), readable)  # (B, K, g i, j)
            new_top = torch.maximum(top, scores.amax(dim=-1))
            base = new_top.masked_fill(new_top == -torch.inf, 0)  # -inf - -inf would be NaN
            weights = scores.sub_(base[..., None]).exp_()
            shrink = (top - base).exp_()  # rescales sums under the old maximum
            mass = mass.mul_(shrink).add_(weights.sum(dim=-1))
            total = total.mul_(shrink[..., None]).add_(weights @ v[:, :, columns].to(exact))
            top = new_top
        total /= mass.masked_fill(mass == 0, 1)[..., None]
        out[:, :, rows] = _by_query_head(total, q.shape[1])
        lse[:, :, rows] = _by_query_head(top + mass.log(), q.shape[1])
    return out, lse


def tiled_backward(
    q: Tensor, k: Tensor, v: Tensor, d_out: Tensor, lse: Tensor, delta: Tensor, mask: Mask
) -> tuple[Tensor, Tensor, Tensor]:
    """-> dq, dk, dv, at least float32. `lse` and `delta` (B, H, I) may include keys beyond these:

    then this is these keys' part of the gradient, and parts add up (used by ring attention).
    """
    kv_heads, exact, scale = k.shape[1], exact_dtype(q), q.shape[-1] ** -0.5
    dq, dk, dv = (torch.zeros_like(z, dtype=exact) for z in (q, k, v))
    lse = lse.masked_fill(lse == -torch.inf, torch.inf)  # a row that reads nothing: exp(-inf) = 0
    for rows in tiles(range(q.shape[2]), ROWS):
        queries, d_rows, row_lse, row_delta = (
            _by_key_head(z[:, :, rows], kv_heads).to(exact) for z in (q, d_out, lse, delta)
        )
        queries = queries * scale
        dq_rows = torch.zeros_like(queries)
        for columns, readable in _read_tiles(mask, rows, k):
            keys, values = k[:, :, columns].to(exact), v[:, :, columns].to(exact)
            scores = _scores(queries, keys, readable)
            weights = scores.sub_(row_lse[..., None]).exp_()  # (B, K, g i, j), rows sum to 1
            dv[:, :, columns] += weights.mT @ d_rows  # the sum over g is in the product
            d_scores = (d_rows @ values.mT).sub_(row_delta[..., None]).mul_(weights)
            dq_rows += d_scores @ keys
            dk[:, :, columns] += d_scores.mT @ queries
        dq[:, :, rows] = _by_query_head(dq_rows.mul_(scale), q.shape[1])
    return dq, dk, dv


def row_products(d_out: Tensor, out: Tensor) -> Tensor:
    """(B, H, I): the row term that a softmax's derivative subtracts, Σ_j P·dP = dO·O."""
    exact = exact_dtype(out)
    return (d_out.to(exact) * out.to(exact)).sum(dim=-1)


def tiles(places: range, size: int) -> Iterator[slice]:
    """Splits `places` into slices of `size`, the last one shorter."""
    for start in range(places.start, places.stop, size):
        yield slice(start, min(start + size, places.stop))


def _read_tiles(mask: Mask, rows: slice, k: Tensor) -> Iterator[tuple[slice, Tensor | None]]:
    """The tiles of keys that these queries can read, each with its mask."""
    for columns in tiles(mask.keys(rows, k.shape[2]), COLUMNS):
        readable = mask.tile(rows, columns, k.device)
        if readable is None or readable.any():  # tiles of disjoint documents are skipped
            yield columns, readable


def _scores(queries: Tensor, keys: Tensor, readable: Tensor | None) -> Tensor:
    """(B, K, g i, C), (B, K, j, C) -> (B, K, g i, j), -inf where masked."""
    scores = queries @ keys.mT
    if readable is not None:
        by_head = rearrange(scores, "b kv (g i) j -> b kv g i j", i=readable.shape[2])
        by_head.masked_fill_(~readable[:, :, None], -torch.inf)
    return scores


def _by_key_head(z: Tensor, kv_heads: int) -> Tensor:
    """(B, H, i, …) -> (B, K, g i, …)"""
    return rearrange(z, "b (kv g) i ... -> b kv (g i) ...", kv=kv_heads)


def _by_query_head(z: Tensor, heads: int) -> Tensor:
    """(B, K, g i, …) -> (B, H, i, …)"""
    return rearrange(z, "b kv (g i) ... -> b (kv g) i ...", g=heads // z.shape[1])


def exact_dtype(q: Tensor) -> torch.dtype:
    """The dtype of sums and exponentials, as a GPU kernel keeps them in registers."""
    return torch.promote_types(q.dtype, torch.float32)


def check_heads(q: Tensor, k: Tensor, v: Tensor) -> None:
    heads, kv_heads = q.shape[1], k.shape[1]
    if k.shape != v.shape or q.shape[0] != k.shape[0] or q.shape[-1] != k.shape[-1]:
        raise InputError(
            f"attention got q {list(q.shape)}, k {list(k.shape)}, v {list(v.shape)}: k and v are "
            "(B, K, J, C) with q's B and C"
        )
    if heads % kv_heads:
        raise InputError(
            f"{heads} query heads cannot share {kv_heads} key/value heads evenly: heads must be a "
            "multiple of kv_heads"
        )
