"""Differentiable collectives: each one's backward is another one's forward.

Over the ranks of a group a tensor is *whole* (the same everywhere), *split* along a dim, or a
*part* of a sum. If every rank uses a whole tensor in its own way, its gradient is a part:

    forward                      x -> y             backward         S bytes of the larger, sent
    copy            nothing      whole -> whole     reduce           0
    reduce          all-reduce   part  -> whole     copy             2(N-1)/N·S
    scatter         my slice     whole -> split     gather           0
    gather          all-gather   split -> whole     scatter          (N-1)/N·S
    reduce_scatter  itself       part  -> split     all_gather       (N-1)/N·S
    all_gather      itself       split -> whole     reduce_scatter   (N-1)/N·S
    all_to_all      itself       by the rank it     itself, sizes    what is not for
                                 is for -> is from  exchanged        the rank itself

Use `gather` if every rank then computes the same, so that the gradient is whole; `all_gather` if
each computes something different, so that the gradient is a part. None modifies its argument, in
forward or backward. Papers: Shoeybi et al., arXiv 1909.08053 (f is `copy`, g is `reduce`); GShard,
2006.16668 (`all_to_all`). Labs: e02b, e02d, e02e.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor

from minitrain.parallel.collectives.overlapped import (
    slices_of,
    start_gather,
    start_reduce_scatter_sum,
)
from minitrain.ranks.group import Group

Operator = Callable[[Tensor], Tensor]


def copy(x: Tensor, group: Group) -> Tensor:
    """Identity, for each rank to use in its own way; backward sums the ranks' gradients."""
    return paired(x, same, partial(summed, group))


def reduce(x: Tensor, group: Group) -> Tensor:
    """The sum of x over ranks; backward passes the gradient through."""
    return paired(x, partial(summed, group), same)


def scatter(x: Tensor, group: Group, dim: int) -> Tensor:
    """This rank's slice of x along `dim`, 1/N of its size; backward gathers."""
    return paired(x, partial(sliced, group, dim), partial(gathered, group, dim))


def gather(x: Tensor, group: Group, dim: int) -> Tensor:
    """The ranks' slices, joined along `dim`; backward keeps this rank's slice of the gradient."""
    return paired(x, partial(gathered, group, dim), partial(sliced, group, dim))


def reduce_scatter(x: Tensor, group: Group, dim: int) -> Tensor:
    """This rank's slice of the sum of x over ranks; backward gathers."""
    return paired(x, partial(sum_sliced, group, dim), partial(gathered, group, dim))


def all_gather(x: Tensor, group: Group, dim: int) -> Tensor:
    """The ranks' slices, joined along `dim`; backward sums them and keeps this rank's slice."""
    return paired(x, partial(gathered, group, dim), partial(sum_sliced, group, dim))


def all_to_all(
    x: Tensor, group: Group, sent: Sequence[int] | None = None, got: Sequence[int] | None = None
) -> Tensor:
    """x (Σ sent, …), sent[r] rows for rank r -> (Σ got, …), got[r] rows from rank r; None: equal
    counts. Backward sends the gradients back."""
    return paired(x, partial(exchanged, group, sent, got), partial(exchanged, group, got, sent))


def paired(x: Tensor, there: Operator, back: Operator) -> Tensor:
    """there(x), with `back` as its backward and `there` as that backward's. Neither modifies x."""
    return _Paired.apply(x, there, back)


class _Paired(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x: Tensor, there: Operator, back: Operator) -> Tensor:
        ctx.operators = back, there
        return there(x)

    @staticmethod
    def backward(ctx, dy: Tensor) -> tuple[Tensor, None, None]:
        return _Paired.apply(dy, *ctx.operators), None, None


# ---- the operators, outside autograd ----


def same(x: Tensor) -> Tensor:
    return x.view_as(x)


def summed(group: Group, x: Tensor) -> Tensor:
    out = x.clone(memory_format=torch.contiguous_format)  # the all-reduce is in place
    return out if group.size == 1 else group.all_reduce(out)


def sliced(group: Group, dim: int, x: Tensor) -> Tensor:
    return slices_of(group, x, dim)[group.rank].clone(memory_format=torch.contiguous_format)


def gathered(group: Group, dim: int, x: Tensor) -> Tensor:
    return start_gather(group, x, dim)()


def sum_sliced(group: Group, dim: int, x: Tensor) -> Tensor:
    return start_reduce_scatter_sum(group, x, dim)()


def exchanged(
    group: Group, sent: Sequence[int] | None, got: Sequence[int] | None, x: Tensor
) -> Tensor:
    rows = len(x) if got is None else sum(got)
    return group.all_to_all(x.new_empty(rows, *x.shape[1:]), x, got, sent)
