"""Tensor parallelism written down plainly: one pair of operators, and the layers that use them.

A rank's way to the others is `tp`: its `rank` and `size`, and operators of one tensor,

    copy, reduce                 whole -> whole, part -> whole        conjugates(same, all-reduce)
    all_gather, reduce_scatter   split -> whole, part -> split        conjugates(gather, sum-slice)
    max                          the largest over the ranks, without a gradient

A layer sends 8(N-1)/N·B·T·D numbers, its stream whole or split. It waits for every message, and
keeps what it gathered for backward; `linear.py` hides the one and does without the other.
Papers: Shoeybi et al., arXiv 1909.08053; Korthikanti et al., 2205.05198. Lab: e02b_tensor_parallel.
Shapes: B batch  T tokens  D width  F features  V vocabulary  N ranks  n = B·T.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from einops import rearrange
from torch import Tensor

from minitrain.model.mlp import swiglu
from minitrain.model.norm import rms_norm

Operator = Callable[[Tensor], Tensor]


class Operators(Protocol):
    """The pair of conjugate operators that the layers take as `tp`."""

    rank: int
    size: int
    copy: Operator
    reduce: Operator
    all_gather: Operator
    reduce_scatter: Operator
    max: Operator


def conjugates(there: Operator, back: Operator) -> tuple[Operator, Operator]:
    """Two operators, each the other's backward. `there` and `back` may work in place."""

    class First(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return there(x.clone())

        @staticmethod
        def backward(ctx: Any, dy: Tensor) -> Tensor:
            return back(dy.clone())

    class Second(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return back(x.clone())

        @staticmethod
        def backward(ctx: Any, dy: Tensor) -> Tensor:
            return there(dy.clone())

    return First.apply, Second.apply


def parallel_mlp(x: Tensor, w: Any, enter: Operator, leave: Operator) -> Tensor:
    """w.gate, w.up (F/N, D), w.down (D, F/N), w.bias (D,); x is whole once it has entered."""
    x = enter(x)  # (B, T, D)
    inside = swiglu(x @ w.gate.T, x @ w.up.T)  # (B, T, F/N)
    return leave(inside @ w.down.T) + w.bias


def parallel_attention(x: Tensor, w: Any, enter: Operator, leave: Operator) -> Tensor:
    """Causal, on this rank's heads of `w.head_size`; w.q, w.k, w.v (D/N, D), w.o (D, D/N)."""
    x = enter(x)  # (B, T, D)
    q, k, v = (
        rearrange(x @ matrix.T, "b t (h c) -> b h t c", c=w.head_size) for matrix in (w.q, w.k, w.v)
    )  # (B, H/N, T, C)
    out = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    return leave(rearrange(out, "b h t c -> b t (h c)") @ w.o.T)


def sequence_mlp(x: Tensor, w: Any, tp: Operators) -> Tensor:
    """x (B, T/N, D) plus the MLP of its norm, (B, T/N, D).

    Norm and bias see T/N tokens, so their gradients are parts: `copy` sums them.
    """
    n = tp.all_gather(rms_norm(x, tp.copy(w.norm), 1e-6))  # (B, T, D)
    inside = swiglu(n @ w.gate.T, n @ w.up.T)  # (B, T, F/N)
    return x + tp.reduce_scatter(inside @ w.down.T) + tp.copy(w.bias)


def embed(tokens: Tensor, weight: Tensor, tp: Operators) -> Tensor:
    """tokens (B, T), weight (V/N, D): this rank's rows -> (B, T, D) on every rank."""
    places = tokens - tp.rank * len(weight)
    elsewhere = (places < 0) | (places >= len(weight))  # (B, T)
    rows = F.embedding(places.masked_fill(elsewhere, 0), weight)
    return tp.reduce(rows.masked_fill(rearrange(elsewhere, "b t -> b t 1"), 0))


def vocabulary_loss(logits: Tensor, targets: Tensor, tp: Operators) -> Tensor:
    """logits (n, V/N), targets (n,) -> the mean cross-entropy (), from three numbers a token."""
    width = logits.shape[-1]
    top = tp.max(logits.amax(dim=-1))  # (n,)
    total = tp.reduce((logits - rearrange(top, "n -> n 1")).exp().sum(dim=-1))  # (n,)
    places = targets - tp.rank * width
    elsewhere = (places < 0) | (places >= width)
    mine = logits.gather(-1, rearrange(places.masked_fill(elsewhere, 0), "n -> n 1"))[:, 0]
    aim = tp.reduce(mine.masked_fill(elsewhere, 0))  # (n,): the target's logit
    return (top + total.log() - aim).mean()
