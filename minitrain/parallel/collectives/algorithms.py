"""Collectives from point-to-point messages: what `all_reduce` does under the hood.

Each rank has S bytes; α is the latency of a message, β the seconds per byte, N the ranks.

    collective                     messages a rank sends     seconds on the critical path
    ring_shift                     1                         α + S·β
    naive_broadcast                N-1 (root)                (N-1)·(α + S·β)
    tree_broadcast                 ⌈log2 N⌉ (root)           ⌈log2 N⌉·(α + S·β)
    naive_all_reduce               N-1 (root)                2(N-1)·(α + S·β)
    ring_reduce_scatter            N-1 of S/N                (N-1)·α + (N-1)/N·S·β
    ring_all_gather                N-1 of S/N                (N-1)·α + (N-1)/N·S·β
    ring_all_reduce                2(N-1) of S/N             2(N-1)·α + 2(N-1)/N·S·β
    recursive_doubling_all_reduce  ⌈log2 N⌉ of S             ⌈log2 N⌉·(α + S·β)
    pairwise_all_to_all            N-1 of S/N                (N-1)·α + (N-1)/N·S·β

A ring sends the fewest bytes, a tree the fewest messages: which one wins depends on S against α/β.
Every function returns a new tensor and leaves its input unchanged; any shape, any number of
elements (0 too), any N (1 too). The order of additions is fixed by the ranks, so two runs agree
bit for bit; a different N adds in a different order and may differ in the last bits.

Papers: Patarasuk & Yuan 2009 (ring), Thakur, Rabenseifner & Gropp 2005 (all of them).
Lab: e00_ranks_and_collectives.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from minitrain.errors import InputError, unknown_name
from minitrain.ranks.group import MEANT, Group


def ring_shift(group: Group, tensor: Tensor) -> Tensor:
    """Returns the left neighbour's tensor: every rank sends its own to the right at the same time.

    If every rank first *sends* and waits for the receiver, no rank ever receives: a deadlock.
    """
    out = _packed(tensor)
    if group.size == 1:
        return out
    right, left = (group.rank + 1) % group.size, (group.rank - 1) % group.size
    return group.exchange(out, right, torch.empty_like(out), left)


def naive_broadcast(group: Group, tensor: Tensor, root: int = 0) -> Tensor:
    """The root sends to one rank after another: N-1 messages, all over its one link.

    Returns a new tensor with the root's values; on other ranks `tensor` gives shape and dtype.
    """
    out = _packed(tensor)
    if group.rank == root:
        for rank in range(group.size):
            if rank != root:
                group.send(out, rank)
    else:
        group.recv(out, root)
    return out


def tree_broadcast(group: Group, tensor: Tensor, root: int = 0) -> Tensor:
    """A binomial tree: every rank that has the tensor sends it, so each round doubles their number.

    round 0   0 → 1
    round 1   0 → 2   1 → 3
    round 2   0 → 4   1 → 5   2 → 6   3 → 7      (ranks counted from the root)
    """
    out = _packed(tensor)
    place = (group.rank - root) % group.size  # 0 at the root
    distance = 1
    while distance < group.size:
        if place < distance and place + distance < group.size:
            group.send(out, (group.rank + distance) % group.size)
        elif distance <= place < 2 * distance:
            group.recv(out, (group.rank - distance) % group.size)
        distance *= 2
    return out


def naive_all_reduce(group: Group, tensor: Tensor, op: str = "sum") -> Tensor:
    """Reduces on rank 0, in rank order, and broadcasts: rank 0 is the bottleneck.

    Rank 0 receives (N-1)·S and sends (N-1)·S bytes, however many links the others have.
    """
    combine = _combiner(op, tensor)
    total = _packed(tensor)
    if group.rank == 0:
        incoming = torch.empty_like(total)
        for rank in range(1, group.size):
            combine(total, group.recv(incoming, rank), out=total)
        _finish(total, op, group.size)
    else:
        group.send(total, 0)
    return naive_broadcast(group, total)


def ring_reduce_scatter(group: Group, tensor: Tensor, op: str = "sum") -> Tensor:
    """Each rank ends with its own chunk reduced over all ranks, and sends (N-1)/N·S bytes.

    Chunk c starts at rank c+1 and goes once around the ring to the right; every rank adds its own
    part, and the chunk arrives home complete: (((x[c+1] + x[c+2]) + …) + x[c]).

        N = 3            step 0               step 1
        rank 0   send c2 → , get c1     send c1 → , get c0 ✓
        rank 1   send c0 → , get c2     send c2 → , get c1 ✓
        rank 2   send c1 → , get c0     send c0 → , get c2 ✓

    Returns chunk `rank` of `tensor.flatten().tensor_split(N)`, 1-D.
    """
    chunks = tensor.detach().reshape(-1).tensor_split(group.size)  # N views of (S/N,)
    if group.size == 1:
        return chunks[0].clone()
    spare = tensor.new_empty(min(2, group.size - 1), chunks[0].numel())  # one arrives, one leaves
    rooms = [
        spare[(group.rank - 2 - chunk) % group.size % len(spare), : chunks[chunk].numel()]
        for chunk in range(group.size)
    ]
    _reduce_around(group, chunks, rooms, _combiner(op, tensor))
    return _finish(rooms[group.rank], op, group.size)


def ring_all_gather(group: Group, chunk: Tensor, sizes: Sequence[int] | None = None) -> Tensor:
    """Every rank's chunk, in order of rank, on every rank; each rank sends (N-1)/N·S bytes.

    `sizes` has the number of elements of each rank's chunk; None: all are as long as this rank's.
    Each step forwards what the last one received, straight into its place in the result: (S,) 1-D.
    """
    sizes = list(sizes) if sizes is not None else [chunk.numel()] * group.size
    _check_sizes(group, chunk, sizes)
    out = chunk.detach().new_empty(sum(sizes))
    places = out.split(sizes)  # N views into the result
    places[group.rank].copy_(chunk.detach().reshape(-1))
    _pass_around(group, places)
    return out


def ring_all_reduce(group: Group, tensor: Tensor, op: str = "sum") -> Tensor:
    """Reduce-scatter, then all-gather: 2(N-1)/N·S bytes a rank, the minimum possible.

    Both work in the result itself: a chunk arrives where it belongs, so nothing is copied. Each
    element is reduced on one rank only and then forwarded, so all ranks get the same bits.
    """
    combine = _combiner(op, tensor)
    if group.size == 1:
        return _packed(tensor)
    chunks = tensor.detach().reshape(-1).tensor_split(group.size)
    out = torch.empty_like(tensor, memory_format=torch.contiguous_format, requires_grad=False)
    places = out.view(-1).tensor_split(group.size)
    _reduce_around(group, chunks, places, combine)
    _finish(places[group.rank], op, group.size)
    _pass_around(group, places)
    return out


def _reduce_around(
    group: Group, chunks: Sequence[Tensor], rooms: Sequence[Tensor], combine: Callable[..., Tensor]
) -> None:
    """N-1 steps to the right: chunk c arrives in `rooms[c]` and leaves with this rank's part added.

    At the end `rooms[rank]` is complete; the other rooms hold partial sums that passed through.
    """
    right, left = (group.rank + 1) % group.size, (group.rank - 1) % group.size
    travelling = chunks[left]
    for step in range(group.size - 1):
        here = (group.rank - 2 - step) % group.size
        group.exchange(travelling, right, rooms[here], left)
        travelling = combine(rooms[here], chunks[here], out=rooms[here])


def _pass_around(group: Group, places: Sequence[Tensor]) -> None:
    """N-1 steps to the right: each rank sends its own chunk, then forwards what just arrived."""
    right, left = (group.rank + 1) % group.size, (group.rank - 1) % group.size
    for step in range(group.size - 1):
        have = places[(group.rank - step) % group.size]
        need = places[(group.rank - step - 1) % group.size]
        group.exchange(have, right, need, left)


def recursive_doubling_all_reduce(group: Group, tensor: Tensor, op: str = "sum") -> Tensor:
    """Partners at distance 1, 2, 4, … swap whole tensors: log2 N messages, but log2 N · S bytes.

    Best for small tensors, where latency dominates. If N is not a power of two, the last N - 2^k
    ranks first hand their tensor to a partner and get the result from it at the end.
    Addition commutes, so both partners of a swap get the same bits: all ranks agree.
    """
    combine = _combiner(op, tensor)
    total = _packed(tensor)
    incoming = torch.empty_like(total)
    core = 1 << (group.size.bit_length() - 1)  # the largest power of two ≤ N
    if group.rank >= core:
        group.send(total, group.rank - core)
        return group.recv(total, group.rank - core)
    if group.rank + core < group.size:
        combine(total, group.recv(incoming, group.rank + core), out=total)
    distance = 1
    while distance < core:
        partner = group.rank ^ distance
        combine(total, group.exchange(total, partner, incoming, partner), out=total)
        distance *= 2
    _finish(total, op, group.size)
    if group.rank + core < group.size:
        group.send(total, group.rank + core)
    return total


def pairwise_all_to_all(
    group: Group, chunks: Sequence[Tensor], shapes: Sequence[Sequence[int]] | None = None
) -> list[Tensor]:
    """Sends chunk j to rank j; returns the chunks received from all ranks, in rank order.

    In step s rank r sends to r+s and receives from r-s: every step uses each link once.
    `shapes[j]` is the shape received from rank j; None: the shape sent to it.
    """
    if len(chunks) != group.size:
        raise InputError(
            f"{len(chunks)} chunks for an all-to-all on {group.size} ranks: give one each"
        )
    shapes = [chunk.shape for chunk in chunks] if shapes is None else shapes
    out = [chunks[group.rank].new_empty(tuple(shape)) for shape in shapes]
    out[group.rank].copy_(chunks[group.rank].detach())
    for step in range(1, group.size):
        to, source = (group.rank + step) % group.size, (group.rank - step) % group.size
        group.exchange(chunks[to].detach().contiguous(), to, out[source], source)
    return out


def chunk_sizes(elements: int, ranks: int) -> list[int]:
    """Chunk sizes of `tensor_split`: the first `elements % ranks` chunks have one element more."""
    return [elements // ranks + (rank < elements % ranks) for rank in range(ranks)]


def _packed(tensor: Tensor) -> Tensor:
    """A contiguous copy outside autograd: ready to send, safe to overwrite."""
    return tensor.detach().clone(memory_format=torch.contiguous_format)


def _combiner(op: str, tensor: Tensor) -> Callable[..., Tensor]:
    combiners = {
        "sum": torch.add,
        "avg": torch.add,  # divided once, at the end
        "max": torch.maximum,
        "min": torch.minimum,
    }
    if op not in combiners:
        raise unknown_name("reduction", op, combiners, MEANT.get(op))
    if op == "avg" and not tensor.is_floating_point():
        raise InputError(f"no average of {tensor.dtype}: use op='sum', or convert with .float()")
    return combiners[op]


def _finish(total: Tensor, op: str, ranks: int) -> Tensor:
    return total.div_(ranks) if op == "avg" else total


def _check_sizes(group: Group, chunk: Tensor, sizes: list[int]) -> None:
    if len(sizes) != group.size or sizes[group.rank] != chunk.numel():
        raise InputError(
            f"rank {group.rank} gathers a chunk of {chunk.numel()} elements with sizes {sizes}: "
            f"give {group.size} sizes, with this rank's own length at place {group.rank}"
        )
