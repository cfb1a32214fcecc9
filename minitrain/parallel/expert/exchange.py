"""Expert parallelism: N ranks hold E/N experts each, and rows are sent to their experts and back.

The ranks of axis ep have different tokens *and* different experts. Rows are sorted by expert, so
what goes to one rank is contiguous:

    rank 0   rows  a a b c d   ─┐ all-to-all ┌─   a a | a b     experts a b   ─┐ all-to-all ┌─  home
    rank 1   rows  a b d d d   ─┘            └─   c d | d d d   experts c d   ─┘            └─  home

A rank re-sorts what arrives from (source, expert) order by expert, and back. Backward is the same
two all-to-alls in reverse, with the gradients. An expert's gradient is then already the sum over
the tokens of all ranks of ep: nothing divides or multiplies it by N.

Cost per layer and rank, forward and backward: 2·(out + in)·D numbers, `out` rows leaving the rank
and `in` rows arriving, M·K·(N-1)/N each under an even load; plus E counts.

The first functions below are lab e02d's mixture of experts, in plain autograd:

    x ─ route ─ plan ─ mix( exchange( experts ) ) ─ y        balance_loss · update_bias

The production versions, which keep less for backward and handle more cases, are in model/experts
(router.py, dispatch.py). Papers: GShard, arXiv 2006.16668; DeepSpeed-MoE, 2201.05596; Switch,
2101.03961 (loss, capacity); Wang et al., 2408.15664 (bias). Lab: e02d_expert_parallel.
Shapes: M tokens  K choices a token  R rows, M·K less what is dropped  D width  E experts  N ranks.
"""

from __future__ import annotations

import math
from functools import partial

import torch
from einops import rearrange
from torch import Tensor, nn

from minitrain.errors import InputError, divide
from minitrain.model.experts.dispatch import collect, dispatch, make_plan
from minitrain.model.experts.moe import Answer, MoE, mixtures
from minitrain.parallel.collectives.differentiable import all_to_all
from minitrain.parallel.layout import even_slice, lay_out, take_slice
from minitrain.ranks.group import Group


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
    """In place: up by `rate` for experts below the mean load over all ranks, down if above it."""
    counts = group.all_reduce(torch.bincount(experts.flatten(), minlength=len(bias)))  # (E,)
    bias += rate * torch.sign(counts.double().mean() - counts)


def plan(
    experts: Tensor, count: int, priority: Tensor, factor: float | None = None
) -> tuple[Tensor, Tensor]:
    """experts, priority (M, K) -> the choice in each row (R,), by expert; rows per expert (E,)."""
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
    """x (M, D), weights (M, K), order (R,), counts (E,) -> (M, D): 0 if all were dropped."""
    tokens = order // weights.shape[1]  # (R,)
    answers = experts(x[tokens], counts)  # (R, D)
    weighed = answers * weights.flatten()[order].unsqueeze(1).to(answers.dtype)
    return torch.zeros_like(x).index_add(0, tokens, weighed)  # (M, D)


# ---- experts on N ranks ----


def exchange_naive(group: Group, experts: Answer, rows: Tensor, counts: Tensor) -> Tensor:
    """Sends each row to the one rank that has its expert, and the output back.

    rows (R, D) by expert, counts (E,) -> (R, D); `experts` is this rank's E/N.
    """
    leaving = rearrange(counts, "(n e) -> n e", n=group.size)  # (N, E/N)
    arriving = group.all_to_all(torch.empty_like(leaving), leaving)  # from each rank
    there, here = leaving.sum(1).tolist(), arriving.sum(1).tolist()
    arrived = all_to_all(rows, group, there, here)  # by source, then by expert
    expert = torch.arange(arriving.shape[1]).repeat(group.size)
    order = expert.repeat_interleave(arriving.flatten()).argsort(stable=True)
    answers = experts(arrived[order], arriving.sum(0))
    return all_to_all(answers[order.argsort()], group, here, there)


def exchange(group: Group, experts: Answer, rows: Tensor, counts: Tensor) -> Tensor:
    """The same; rows are sorted and put back without a scatter-add in backward."""
    leaving = rearrange(counts, "(n e) -> n e", n=group.size)  # (N, E/N)
    arriving = group.all_to_all(torch.empty_like(leaving), leaving)  # for each of my experts
    there, here = leaving.sum(1).tolist(), arriving.sum(1).tolist()
    arrived = all_to_all(rows, group, there, here)  # by source, then by expert
    mine = torch.arange(arriving.shape[1], device=rows.device).repeat(group.size)
    expert = mine.repeat_interleave(arriving.flatten())  # of each row that has arrived
    sorting = make_plan(expert.unsqueeze(1), arriving.shape[1])
    answers = experts(dispatch(arrived, sorting), sorting.counts)
    return all_to_all(collect(answers, sorting), group, here, there)


def expert_parallel(model: nn.Module, group: Group) -> nn.Module:
    """Keeps this rank's slices of a full model's experts, in place, and connects the exchange.

    Rank r of N holds experts r·E/N to (r+1)·E/N. Experts are split over axis ep; elsewhere each
    rank of ep sees other tokens, so its gradient is a part. Call it before making the optimizer:
    the slices are new parameters. A capacity applies per rank, to its own tokens.
    """
    layers = mixtures(model)
    if not layers:
        raise InputError("this model has no experts to split: set `experts` in its configuration")
    for layer in layers:
        divide("experts", layer.count, group.size)  # before anything is changed
    split = {id(p) for layer in layers for p in layer.experts.parameters()}
    for parameter in model.parameters():
        if id(parameter) not in split:
            lay_out(parameter, partial="ep")
    for layer in layers:
        _keep_slice(layer, group)
        layer.exchange = partial(exchange, group)
    return model


def _keep_slice(layer: MoE, group: Group) -> None:
    for name, weight in list(layer.experts.named_parameters()):
        part = even_slice("experts", len(weight), group, dim=0)
        setattr(layer.experts, name, take_slice(weight, part, axis="ep"))  # (E/N, …)
