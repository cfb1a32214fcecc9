"""Collectives that overlap with compute: each `start_…` issues one and returns a wait function.

    start_all_gather           flat, in place         ZeRO's weights
    start_reduce_scatter_mean  flat, in place         ZeRO's gradients, averaged
    start_gather               along a dim, new       tensor parallelism's split activations
    start_reduce_scatter_sum   along a dim, new       and their parts of a sum
    start_all_reduce           in place
    pass_on, around            a ring of neighbours   context parallelism's keys and values

The flat ones send directly. A ring forwards what has just arrived: N-1 steps, each waiting for the
one before, so it would need a thread to drive it. Here each rank sends its part to every other rank
directly, all at once, and the library moves the bytes in the background. Bytes a rank sends:
(N-1)/N·S, as in a ring; messages: N-1.

    ring     r sends c ─ wait ─ sends c-1 ─ wait ─ …      in flight: 1 message    extra memory 2S/N
    direct   r sends to all others ─ own work ─ wait      in flight: N-1          extra (N-1)/N·S

gloo's own all-gather makes an extra copy through a buffer of S bytes, and its reduce-scatter is an
all-reduce: from 4 MB up, direct sends take 0.6 to 0.8 and 0.4 to 0.6 of gloo's times on 2 and 4
ranks. On a GPU both are NCCL's. Labs: e02b, e02e, e03.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from minitrain.errors import divide
from minitrain.ranks.group import Group

# ---- flat, in place: `whole` (S,) is N equal parts ----


def start_all_gather(group: Group, whole: Tensor) -> Callable[[], object]:
    """Rank r holds part r of `whole`; after the returned wait, every rank has all parts."""
    parts = whole.chunk(group.size)
    if whole.is_cuda:
        return group.all_gather(whole, parts[group.rank], async_op=True).wait
    works = []
    for to, source in _turns(group):
        works.append(group.irecv(parts[source], source))
        works.append(group.isend(parts[group.rank], to))
    return lambda: _wait(works)


def start_reduce_scatter_mean(group: Group, whole: Tensor) -> Callable[[], Tensor]:
    """The returned wait averages this rank's part of `whole` over ranks, in place.

    Sums are in float32 or wider, always in the same order, so that runs agree bit for bit. `whole`
    must not change before the wait.
    """
    parts = whole.chunk(group.size)
    own = parts[group.rank]  # (S/N,)
    if whole.is_cuda:
        return group.reduce_scatter(own, whole, op="avg", async_op=True).wait
    works, terms = [], []
    for to, source in _turns(group):
        terms.append(torch.empty_like(own))
        works.append(group.irecv(terms[-1], source))
        works.append(group.isend(parts[to], to))
    return lambda: _wait(works) or _average(own, terms)


def _turns(group: Group) -> list[tuple[int, int]]:
    """(to, source) of each step: all ranks send s places on, so none receives two at once."""
    ranks = range(1, group.size)
    return [((group.rank + s) % group.size, (group.rank - s) % group.size) for s in ranks]


def _wait(works: list) -> None:
    for work in works:
        work.wait()


def _average(own: Tensor, terms: list[Tensor]) -> Tensor:
    total = own.to(torch.promote_types(own.dtype, torch.float32))  # copies only if narrower
    for term in terms:
        total.add_(term)
    return own.copy_(total.div_(1 + len(terms)))


# ---- along a dim, into new tensors ----


def start_gather(group: Group, x: Tensor, dim: int) -> Callable[[], Tensor]:
    """The wait joins the ranks' x (..., T/N, ...) along `dim` -> (..., T, ...)."""
    if group.size == 1:
        return lambda: x
    whole = x.new_empty(group.size, *x.shape)  # (N, ..., T/N, ...)
    work = group.all_gather(whole, x, async_op=True)
    dim = dim % x.dim()
    return lambda: work.wait().movedim(0, dim).flatten(dim, dim + 1)  # (..., T, ...)


def start_reduce_scatter_sum(group: Group, x: Tensor, dim: int) -> Callable[[], Tensor]:
    """The wait gives this rank's slice (..., T/N, ...) of the sum of the ranks' x (..., T, ...)."""
    if group.size == 1:
        return lambda: x
    slices = slices_of(group, x, dim).contiguous()  # (N, ..., T/N, ...)
    return group.reduce_scatter(torch.empty_like(slices[0]), slices, async_op=True).wait


def start_all_reduce(group: Group, x: Tensor) -> Callable[[], Tensor]:
    """The wait gives the sum of the ranks' x, *in place*: pass an x that no one else uses."""
    return (lambda: x) if group.size == 1 else group.all_reduce(x, async_op=True).wait


def slices_of(group: Group, x: Tensor, dim: int) -> Tensor:
    """x (..., T, ...) -> (N, ..., T/N, ...), a view."""
    share = divide(f"elements of dim {dim}", x.shape[dim], group.size)
    dim = dim % x.dim()
    return x.unflatten(dim, (group.size, share)).movedim(dim, 0)


# ---- a ring of neighbours ----


def around(group: Group, block: Tensor) -> Iterator[tuple[int, Tensor]]:
    """(owner, block) of every rank: this rank's first, then the left neighbour's, and so on.

    The next block is in flight while the caller works with this one.
    """
    for step in range(group.size):
        coming = pass_on(group, block) if step + 1 < group.size else None
        yield (group.rank - step) % group.size, block
        if coming is not None:
            block = coming()


def pass_on(group: Group, tensor: Tensor) -> Callable[[], Tensor]:
    """Sends `tensor` to the right; calling the result waits for the one from the left."""
    arriving = group.irecv(torch.empty_like(tensor), (group.rank - 1) % group.size)
    leaving = group.isend(tensor, (group.rank + 1) % group.size)

    def finish() -> Tensor:
        leaving.wait()
        return arriving.wait()

    return finish
