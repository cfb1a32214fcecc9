"""Dispatch and combine: tokens to rows sorted by expert, and back.

Each of M tokens makes K choices; a kept choice is a row, and rows of one expert are contiguous:

    token      0    1    2                      row       0  1  2  3  4  5
    experts   b a  c b  a b        order of choices      a0 a2|b0 b1 b2|c1       counts 2 3 1

`slots` is the inverse: the row of each choice. Without a capacity nothing is dropped (dropless).
With one, an expert takes its `capacity` choices of highest router probability (ties: the earlier
token) and drops the rest: a dropped choice adds nothing to its token, and the weights of the kept
ones are not renormalized.

Cost: moves M·K·D numbers each way; backward is the reverse, without a scatter-add, so it is bitwise
deterministic. Papers: GShard, arXiv 2006.16668 (capacity); V-MoE,
2106.05974 (priority); MegaBlocks, 2211.15841 (dropless). Lab: e02d_expert_parallel.
Shapes: M tokens  K choices a token  E experts  R rows, M·K less what is dropped  D width.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable


class RoutingPlan(NamedTuple):
    """The row of each choice and the choice of each row; choice k of a token is K·token + k."""

    order: Tensor  # (R,) the choice in each row
    slots: Tensor  # (M, K) the row of each choice; 0 if dropped
    kept: Tensor  # (M, K) bool
    counts: Tensor  # (E,) rows of each expert

    @property
    def tokens(self) -> Tensor:
        """(R,) the token in each row."""
        return self.order // self.slots.shape[1]

    @property
    def dropped(self) -> Tensor:
        """() choices dropped because their expert was full."""
        return (~self.kept).sum()


def make_plan(
    experts: Tensor,
    count: int,
    capacity: int | None = None,
    probabilities: Tensor | None = None,
) -> RoutingPlan:
    """experts (M, K) int64 below `count`; `probabilities` (M, K) give priority under a capacity."""
    flat = experts.flatten()  # (M·K,)
    counts = torch.bincount(flat, minlength=count)  # (E,)
    if capacity is None:
        order = flat.argsort(stable=True)  # (M·K,) by expert, then by token
    else:
        first = probabilities.flatten().argsort(descending=True, stable=True)
        order = first[flat[first].argsort(stable=True)]  # by expert, then by probability
        order = order[places(counts) < capacity]  # (R,)
        counts = counts.clamp(max=capacity)
    slots = torch.zeros_like(flat)
    slots[order] = torch.arange(len(order), device=flat.device)
    kept = torch.zeros_like(flat, dtype=torch.bool)
    kept[order] = True
    return RoutingPlan(order, slots.view_as(experts), kept.view_as(experts), counts)


def places(counts: Tensor) -> Tensor:
    """counts (E,) -> (their sum,): 0, 1, 2, … within each expert's rows."""
    starts = counts.cumsum(0) - counts  # (E,)
    rows = torch.arange(int(counts.sum()), device=counts.device)
    return rows - starts.repeat_interleave(counts)


def dispatch(x: Tensor, plan: RoutingPlan) -> Tensor:
    """x (M, D) -> (R, D): copies each row's token. The backward is `collect`."""
    return _Dispatch.apply(x, plan)


def collect(rows: Tensor, plan: RoutingPlan) -> Tensor:
    """rows (R, D) -> (M, D): the sum of each token's rows. The backward is `dispatch`."""
    return _Collect.apply(rows, plan)


def combine(rows: Tensor, weights: Tensor, plan: RoutingPlan) -> Tensor:
    """rows (R, D), weights (M, K) -> (M, D): the weighted sum of each token's rows."""
    return _Combine.apply(rows, weights, plan)


class _Dispatch(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x: Tensor, plan: RoutingPlan) -> Tensor:
        ctx.save_for_backward(plan.slots, plan.kept)
        return x.index_select(0, plan.tokens)  # (R, D)

    @staticmethod
    @once_differentiable
    def backward(ctx, dy: Tensor) -> tuple[Tensor, None]:
        slots, kept = ctx.saved_tensors
        return _weighed(dy, slots, kept), None


class _Collect(torch.autograd.Function):
    @staticmethod
    def forward(ctx, rows: Tensor, plan: RoutingPlan) -> Tensor:
        ctx.save_for_backward(plan.tokens)
        return _weighed(rows, plan.slots, plan.kept)

    @staticmethod
    @once_differentiable
    def backward(ctx, dy: Tensor) -> tuple[Tensor, None]:
        (tokens,) = ctx.saved_tensors
        return dy.index_select(0, tokens), None


class _Combine(torch.autograd.Function):
    @staticmethod
    def forward(ctx, rows: Tensor, weights: Tensor, plan: RoutingPlan) -> Tensor:
        ctx.save_for_backward(rows, weights, plan.order)
        return _weighed(rows, plan.slots, weights * plan.kept)

    @staticmethod
    @once_differentiable
    def backward(ctx, dy: Tensor) -> tuple[Tensor, Tensor, None]:
        rows, weights, order = ctx.saved_tensors
        dy = dy.index_select(0, order // weights.shape[1])  # (R, D)
        dots = (dy * rows).sum(dim=-1, dtype=weights.dtype)  # (R,)
        dweights = torch.zeros_like(weights).flatten()  # (M·K,): 0 for dropped choices
        dweights[order] = dots
        drows = dy * weights.flatten()[order].to(dy.dtype).unsqueeze(1)  # (R, D)
        return drows, dweights.view_as(weights), None


def _weighed(rows: Tensor, slots: Tensor, weights: Tensor) -> Tensor:
    """Sums each token's rows, found by slots (M, K), times weights (M, K), in float32 or wider."""
    wide = torch.promote_types(rows.dtype, torch.float32)
    out = torch.zeros(len(slots), rows.shape[1], dtype=wide, device=rows.device)  # (M, D)
    for slot, weight in zip(slots.unbind(1), weights.to(wide).unbind(1)):
        out.addcmul_(rows.index_select(0, slot).to(wide), weight.unsqueeze(1))
    return out.to(rows.dtype)
