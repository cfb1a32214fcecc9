"""The operators of tensor parallelism, in pairs: each one's backward is its partner's forward.

A tensor is, over the ranks of a group, *whole* (the same everywhere), *split* along a dim, or a
*part* of a sum. The gradient of a whole that every rank uses in its own way is a part, and so on:

    forward                      x -> y             partner          S bytes of the larger, sent
    copy            nothing      whole -> whole     reduce           0
    reduce          all-reduce   part  -> whole     copy             2(N-1)/N·S
    scatter         my slice     whole -> split     gather           0
    gather          all-gather   split -> whole     scatter          (N-1)/N·S
    reduce_scatter  itself       part  -> split     all_gather       (N-1)/N·S
    all_gather      itself       split -> whole     reduce_scatter   (N-1)/N·S

`gather` is for what every rank then treats alike, so that its gradient is whole; `all_gather` for
what each uses in its own way, so that its gradient is a part. None changes its argument, in either
direction. Paper: Shoeybi et al., arXiv 1909.08053 (f is `copy`, g is `reduce`). Lab:
e02b_tensor_parallel.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from minitrain.errors import InputError
from minitrain.ranks.group import Group

Operator = Callable[[Tensor, Group, int], Tensor]


def copy(x: Tensor, group: Group) -> Tensor:
    """x, for each rank to use in its own way; backward sums what they say of it."""
    return _Conjugate.apply(x, group, 0, same, summed)


def reduce(x: Tensor, group: Group) -> Tensor:
    """The sum of the ranks' x; backward hands the gradient on as it is."""
    return _Conjugate.apply(x, group, 0, summed, same)


def scatter(x: Tensor, group: Group, dim: int) -> Tensor:
    """This rank's slice of x along `dim`, of 1/N of its size; backward gathers."""
    return _Conjugate.apply(x, group, dim, sliced, gathered)


def gather(x: Tensor, group: Group, dim: int) -> Tensor:
    """The ranks' slices, joined along `dim`; backward keeps this rank's slice of the gradient."""
    return _Conjugate.apply(x, group, dim, gathered, sliced)


def reduce_scatter(x: Tensor, group: Group, dim: int) -> Tensor:
    """This rank's slice of the sum of the ranks' x; backward gathers."""
    return _Conjugate.apply(x, group, dim, sum_sliced, gathered)


def all_gather(x: Tensor, group: Group, dim: int) -> Tensor:
    """The ranks' slices, joined along `dim`; backward sums, and keeps this rank's slice."""
    return _Conjugate.apply(x, group, dim, gathered, sum_sliced)


class _Conjugate(torch.autograd.Function):
    """Forward does one operator, backward the other; a second backward the first one again."""

    @staticmethod
    def forward(ctx, x: Tensor, group: Group, dim: int, there: Operator, back: Operator) -> Tensor:
        ctx.arguments = (group, dim, back, there)
        return there(x, group, dim)

    @staticmethod
    def backward(ctx, dy: Tensor) -> tuple[Tensor, None, None, None, None]:
        return _Conjugate.apply(dy, *ctx.arguments), None, None, None, None


# ---- what they do, outside autograd ----


def same(x: Tensor, group: Group, dim: int = 0) -> Tensor:
    return x.view_as(x)


def summed(x: Tensor, group: Group, dim: int = 0) -> Tensor:
    out = x.clone(memory_format=torch.contiguous_format)  # the all-reduce is in place
    return out if group.size == 1 else group.all_reduce(out)


def sliced(x: Tensor, group: Group, dim: int) -> Tensor:
    return _slices(x, group, dim)[group.rank].clone(memory_format=torch.contiguous_format)


def gathered(x: Tensor, group: Group, dim: int) -> Tensor:
    return start_gather(x, group, dim)()


def sum_sliced(x: Tensor, group: Group, dim: int) -> Tensor:
    return start_reduce_scatter(x, group, dim)()


def start_gather(x: Tensor, group: Group, dim: int) -> Callable[[], Tensor]:
    """Issues the all-gather along `dim`; what it returns waits for it, and gives the whole."""
    if group.size == 1:
        return lambda: x
    whole = x.new_empty(group.size, *x.shape)  # (N, ..., T/N, ...)
    work = group.all_gather(whole, x, async_op=True)
    dim = dim % x.dim()
    return lambda: work.wait().movedim(0, dim).flatten(dim, dim + 1)  # (..., T, ...)


def start_reduce_scatter(x: Tensor, group: Group, dim: int) -> Callable[[], Tensor]:
    """Issues the reduce-scatter along `dim`; what it returns waits for it, and gives the slice."""
    if group.size == 1:
        return lambda: x
    slices = _slices(x, group, dim).contiguous()  # (N, ..., T/N, ...)
    return group.reduce_scatter(torch.empty_like(slices[0]), slices, async_op=True).wait


def start_all_reduce(x: Tensor, group: Group) -> Callable[[], Tensor]:
    """Issues the all-reduce *in place*, on a fresh x of one's own; what it returns waits."""
    return (lambda: x) if group.size == 1 else group.all_reduce(x, async_op=True).wait


def _slices(x: Tensor, group: Group, dim: int) -> Tensor:
    """x (..., T, ...) -> (N, ..., T/N, ...), a view."""
    length, ranks = x.shape[dim], group.size
    if length % ranks:
        lower = length - length % ranks
        advice = f"{lower} or {lower + ranks}" if lower else f"{ranks}"
        raise InputError(
            f"dim {dim} of {list(x.shape)} has {length} elements, which {ranks} ranks cannot "
            f"share equally: use {advice}"
        )
    dim = dim % x.dim()
    return x.unflatten(dim, (ranks, length // ranks)).movedim(dim, 0)


class AllToAll(torch.autograd.Function):
    """Piece j goes to rank j, and its gradient comes back the same way."""

    @staticmethod
    def forward(ctx, group: Group, pieces: Tensor) -> Tensor:
        ctx.group = group
        return group.all_to_all(torch.empty_like(pieces), pieces)

    @staticmethod
    def backward(ctx, d_pieces: Tensor) -> tuple[None, Tensor]:
        return None, ctx.group.all_to_all(torch.empty_like(d_pieces), d_pieces)


def all_to_all(x: Tensor, group: Group, sent: Sequence[int], got: Sequence[int]) -> Tensor:
    """x (Σ sent, D), sent[r] rows for rank r -> (Σ got, D). Backward sends the gradients back."""
    return _AllToAll.apply(x, group, sent, got)


class _AllToAll(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x: Tensor, group: Group, sent: Sequence[int], got: Sequence[int]) -> Tensor:
        ctx.arguments = (group, got, sent)
        return group.all_to_all(x.new_empty(sum(got), x.shape[1]), x, got, sent)

    @staticmethod
    def backward(ctx, dy: Tensor) -> tuple[Tensor, None, None, None]:
        return _AllToAll.apply(dy, *ctx.arguments), None, None, None
