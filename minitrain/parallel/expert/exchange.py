"""Expert parallelism: N ranks hold E/N experts each, and rows travel to their experts and back.

The ranks of axis ep have different tokens *and* different experts. Rows are sorted by expert, so
what goes to one rank is contiguous:

    rank 0   rows  a a b c d   ─┐ all-to-all ┌─   a a | a b     experts a b   ─┐ all-to-all ┌─  home
    rank 1   rows  a b d d d   ─┘            └─   c d | d d d   experts c d   ─┘            └─  home

A rank sorts what arrives, by source and then expert, once more by expert, and back. Backward is the
same two all-to-alls the other way round, with the gradients. An expert's gradient is then already
the sum over the tokens of all ranks of ep: nothing divides or multiplies it by N.

Cost a layer and rank, forward and backward: 2·(out + in)·D numbers, with `out` the rows that leave
the rank and `in` those that come, M·K·(N-1)/N each where the load is even; and E counts. The naive
one sends every row to every rank: N times as much. Papers: GShard, arXiv 2006.16668; DeepSpeed-MoE,
2201.05596. Lab: e02d_expert_parallel.
Shapes: M tokens  K choices a token  R = M·K rows  D width  E experts  N ranks.
"""

from __future__ import annotations

from functools import partial

import torch
from einops import rearrange, reduce, repeat
from torch import Tensor, nn

from minitrain.errors import InputError
from minitrain.model.experts.dispatch import collect, dispatch, make_plan
from minitrain.model.experts.moe import Answer, MoE
from minitrain.model.experts.step import mixtures
from minitrain.parallel.collectives.differentiable import all_to_all
from minitrain.parallel.layout import inherit_layout, lay_out
from minitrain.ranks.group import Group


def exchange_naive(group: Group, experts: Answer, rows: Tensor, counts: Tensor) -> Tensor:
    """Every row to every rank, which answers for its own experts, and with zeros for the others.

    rows (R, D) by expert, counts (E,) -> (R, D); `experts` is this rank's E/N.
    """
    theirs = gather_counts(group, counts)  # (N, E)
    sizes = theirs.sum(1).tolist()  # R of each rank
    copies = repeat(rows, "r d -> (n r) d", n=group.size)
    everything = all_to_all(copies, group, [len(rows)] * group.size, sizes)  # (ΣR, D)
    expert = _numbers(theirs)  # (ΣR,)
    held = len(counts) // group.size
    mine = torch.where(expert // held == group.rank)[0]
    order = mine[expert[mine].argsort(stable=True)]  # my experts' rows, by expert
    answers = experts(everything[order], theirs.sum(0).chunk(group.size)[group.rank])
    zeros = answers.new_zeros(len(expert), rows.shape[1])
    back = all_to_all(zeros.index_copy(0, order, answers), group, sizes, [len(rows)] * group.size)
    return reduce(back, "(n r) d -> r d", "sum", n=group.size)


def exchange(group: Group, experts: Answer, rows: Tensor, counts: Tensor) -> Tensor:
    """The same; each row goes to the one rank that has its expert."""
    leaving = rearrange(counts, "(n e) -> n e", n=group.size)  # (N, E/N)
    arriving = torch.empty_like(leaving)  # from each rank, for each of my experts
    group.all_to_all(arriving, leaving)
    there, here = leaving.sum(1).tolist(), arriving.sum(1).tolist()
    arrived = all_to_all(rows, group, there, here)  # by source, then by expert
    plan = make_plan(_numbers(arriving).unsqueeze(1), arriving.shape[1])
    answers = experts(dispatch(arrived, plan), plan.counts)
    return all_to_all(collect(answers, plan), group, here, there)


def gather_counts(group: Group, counts: Tensor) -> Tensor:
    """counts (E,) -> (N, E), of all ranks."""
    return group.all_gather(counts.new_empty(group.size, len(counts)), counts)


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
        _check_divides(layer.count, group.size)
    split = {id(p) for layer in layers for p in layer.experts.parameters()}
    for parameter in model.parameters():
        if id(parameter) not in split:
            lay_out(parameter, partial="ep")
    for layer in layers:
        _keep_slice(layer, group)
        layer.exchange = partial(exchange, group)
    return model


def _check_divides(experts: int, ranks: int) -> None:
    if experts % ranks:
        fitting = [str(n) for n in range(1, experts + 1) if experts % n == 0]
        raise InputError(
            f"{experts} experts cannot be split over {ranks} ranks: use {', '.join(fitting)} ranks"
        )


def _keep_slice(layer: MoE, group: Group) -> None:
    for name, weight in list(layer.experts.named_parameters()):
        mine = weight.detach().chunk(group.size)[group.rank].clone()  # (E/N, …)
        parameter = nn.Parameter(mine, requires_grad=weight.requires_grad)
        inherit_layout(parameter, weight)
        lay_out(parameter, split="ep")
        setattr(layer.experts, name, parameter)


def exchange_bytes(leaving: int, arriving: int, width: int, itemsize: int) -> int:
    """What a rank sends for one layer, forward and backward, by the formula above: `leaving` rows
    to other ranks and `arriving` rows from them, of D numbers. The counts are not in it."""
    return 2 * (leaving + arriving) * width * itemsize


def rows_between_ranks(counts: Tensor, rank: int) -> tuple[int, int]:
    """counts (N, E) of every rank's rows -> (leaving, arriving) of one rank."""
    there = reduce(counts, "source (n e) -> source n", "sum", n=len(counts))  # (N, N)
    stays = there[rank, rank]
    return int(there[rank].sum() - stays), int(there[:, rank].sum() - stays)
