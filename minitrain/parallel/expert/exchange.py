"""Expert parallelism: N ranks hold E/N experts each, and rows travel to their experts and back.

The ranks of axis ep have different tokens *and* different experts. Rows are sorted by expert, so
what goes to one rank is contiguous:

    rank 0   rows  a a b c d   ─┐ all-to-all ┌─   a a | a b     experts a b   ─┐ all-to-all ┌─  home
    rank 1   rows  a b d d d   ─┘            └─   c d | d d d   experts c d   ─┘            └─  home

A rank sorts what arrives, by source and then expert, once more by expert, and back. Backward is the
same two all-to-alls the other way round, with the gradients. An expert's gradient is then already
the sum over the tokens of all ranks of ep: nothing divides or multiplies it by N.

Cost a layer and rank, forward and backward: 2·(out + in)·D numbers, with `out` the rows that leave
the rank and `in` those that come, M·K·(N-1)/N each where the load is even; and E counts.
Papers: GShard, arXiv 2006.16668; DeepSpeed-MoE, 2201.05596. Lab: e02d_expert_parallel.
Shapes: M tokens  K choices a token  R = M·K rows  D width  E experts  N ranks.
"""

from __future__ import annotations

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


def exchange(group: Group, experts: Answer, rows: Tensor, counts: Tensor) -> Tensor:
    """Each row to the one rank that has its expert, and its answer back.

    rows (R, D) by expert, counts (E,) -> (R, D); `experts` is this rank's E/N.
    """
    leaving = rearrange(counts, "(n e) -> n e", n=group.size)  # (N, E/N)
    arriving = group.all_to_all(torch.empty_like(leaving), leaving)  # for each of my experts
    there, here = leaving.sum(1).tolist(), arriving.sum(1).tolist()
    arrived = all_to_all(rows, group, there, here)  # by source, then by expert
    plan = make_plan(_numbers(arriving).unsqueeze(1), arriving.shape[1])
    answers = experts(dispatch(arrived, plan), plan.counts)
    return all_to_all(collect(answers, plan), group, here, there)


def _numbers(counts: Tensor) -> Tensor:
    """counts (N, E) -> (their sum,): the expert of each row, the rows by source, then by expert."""
    numbers = torch.arange(counts.shape[1], device=counts.device).repeat(len(counts))
    return numbers.repeat_interleave(counts.flatten())


def expert_parallel(model: nn.Module, group: Group) -> nn.Module:
    """Keeps this rank's slices of the experts of a full model, in place, and links the exchange.

    Rank r of N holds experts r·E/N to (r+1)·E/N. Experts are split over axis ep; of everything else
    each rank of ep sees other tokens, so that its gradient is a part. Before the optimizer is made:
    the slices are new parameters. A capacity is each rank's own, for its own tokens.
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
