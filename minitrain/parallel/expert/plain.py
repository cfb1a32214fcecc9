"""A mixture of experts as lab e02d writes it: six functions of plain autograd.

    x ─ route ─ plan ─ mix( exchange( experts ) ) ─ y        balance_loss · update_bias

The ranks of `group` have different tokens and different experts. The real ones, which keep less for
backward and know more cases, are in exchange.py, experts/dispatch.py and experts/router.py.
Papers: Switch, arXiv 2101.03961 (loss, capacity); Wang et al., 2408.15664 (bias); GShard,
2006.16668 (exchange).
Lab: e02d_expert_parallel.
Shapes: M tokens  K choices a token  E experts  R rows, M·K less what is dropped  D width  N ranks.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from einops import rearrange
from torch import Tensor

from minitrain.parallel.collectives.differentiable import all_to_all
from minitrain.ranks.group import Group

Answer = Callable[[Tensor, Tensor], Tensor]  # rows (R, D), counts (E,) -> (R, D)


def route(x: Tensor, weight: Tensor, bias: Tensor, k: int) -> tuple[Tensor, Tensor, Tensor]:
    """x (M, D), weight (E, D), bias (E,) -> p (M, E), experts (M, K), weights (M, K)."""
    wide = torch.promote_types(x.dtype, torch.float32)
    p = (x.to(wide) @ weight.to(wide).T).softmax(dim=-1)  # (M, E)
    experts = (p.detach() + bias).topk(k).indices  # (M, K)
    chosen = p.gather(1, experts)  # (M, K)
    weights = chosen / chosen.sum(1, keepdim=True) if k > 1 else chosen
    return p, experts, weights


def balance_loss(group: Group, p: Tensor, experts: Tensor) -> Tensor:
    """This rank's share of E·Σ f_i·P_i over the tokens of all ranks: p (M, E), experts (M, K)."""
    count = p.shape[1]
    counts = group.all_reduce(torch.bincount(experts.flatten(), minlength=count))  # (E,)
    f = counts / counts.sum()
    tokens = counts.sum() / experts.shape[1]  # of all ranks
    return count * (f * p.sum(dim=0)).sum() / tokens


def update_bias(group: Group, bias: Tensor, experts: Tensor, rate: float) -> None:
    """In place: up by `rate` where an expert got less than the mean on all ranks, down if more."""
    counts = group.all_reduce(torch.bincount(experts.flatten(), minlength=len(bias)))  # (E,)
    bias += rate * torch.sign(counts.double().mean() - counts)


def plan(
    experts: Tensor, count: int, priority: Tensor, factor: float | None = None
) -> tuple[Tensor, Tensor]:
    """experts, priority (M, K) -> the choice in each row (R,), by expert, and rows of each (E,)."""
    flat = experts.flatten()  # (M·K,)
    first = priority.flatten().argsort(descending=True, stable=True)
    order = first[flat[first].argsort(stable=True)]  # by expert, then by priority
    counts = torch.bincount(flat, minlength=count)  # (E,)
    if factor is not None:
        capacity = math.ceil(factor * len(flat) / count)
        starts = counts.cumsum(0) - counts  # (E,)
        place = torch.arange(len(flat)) - starts[flat[order]]  # within its expert
        order = order[place < capacity]  # (R,)
        counts = counts.clamp(max=capacity)
    return order, counts


def mix(x: Tensor, weights: Tensor, order: Tensor, counts: Tensor, experts: Answer) -> Tensor:
    """x (M, D), weights (M, K), order (R,), counts (E,) -> (M, D): 0 where all was dropped."""
    tokens = order // weights.shape[1]  # (R,)
    answers = experts(x[tokens], counts)  # (R, D)
    weighed = answers * weights.flatten()[order].unsqueeze(1).to(answers.dtype)
    return torch.zeros_like(x).index_add(0, tokens, weighed)  # (M, D)


def exchange(group: Group, experts: Answer, rows: Tensor, counts: Tensor) -> Tensor:
    """rows (R, D) by expert, counts (E,) -> (R, D); `experts` is this rank's E/N."""
    leaving = rearrange(counts, "(n e) -> n e", n=group.size)  # (N, E/N)
    arriving = group.all_to_all(torch.empty_like(leaving), leaving)  # from each rank
    there, here = leaving.sum(1).tolist(), arriving.sum(1).tolist()
    arrived = all_to_all(rows, group, there, here)  # by source, then by expert
    expert = torch.arange(arriving.shape[1]).repeat(group.size)
    order = expert.repeat_interleave(arriving.flatten()).argsort(stable=True)
    answers = experts(arrived[order], arriving.sum(0))
    return all_to_all(answers[order.argsort()], group, here, there)
