"""Our ring collectives, send and receive in Python, against gloo's in C++, over sizes.

Sizes are of the whole tensor: the one reduced, or the gathered result. gloo's reduce-scatter is an
all-reduce that discards most of its result, so our ring sends half as much; its all-reduce and
all-gather are rings like ours, without Python between messages.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import torch
import torch.distributed as dist

from minitrain.bench.case import OURS, PEER, TORCH, Case, Costs, in_turn, on_ranks
from minitrain.parallel.collectives.algorithms import (
    ring_all_gather,
    ring_all_reduce,
    ring_reduce_scatter,
)
from minitrain.ranks.group import Group
from minitrain.words import memory_text

SIZES = (2**12, 2**16, 2**20, 2**22, 2**24, 2**26)  # 4 KiB to 64 MiB
SMALL, LARGE = (
    "at this size the time is latency, and ours runs Python for every message, records it and "
    "checks it against what the other ranks do",
    "at this size the time is memory traffic, and ours returns a new tensor, whose pages the "
    "system must first provide, where gloo writes into one that is there",
)
# Newer versions of torch rename these and warn about the old names.
REDUCE_SCATTER = getattr(dist, "reduce_scatter_single", dist.reduce_scatter_tensor)
ALL_GATHER = getattr(dist, "all_gather_single", dist.all_gather_into_tensor)
Contenders = tuple[Callable[[], torch.Tensor], Callable[[], torch.Tensor]]


def cases(repeats: int = 15, sizes: Sequence[int] = SIZES, ranks: int = 2) -> list[Case]:
    pairs = (ring_all_reduce_pair, ring_reduce_scatter_pair, ring_all_gather_pair)
    return [
        Case(
            f"{pair.__name__.removesuffix('_pair')} {memory_text(size)}, {ranks} ranks",
            f"gloo of {TORCH}",
            partial(on_ranks, measured, pair, size, repeats, ranks=ranks),
            SMALL if size < 2**20 else LARGE,
        )
        for pair in pairs
        for size in sizes
    ]


def measured(group: Group, pair: Callable, size: int, repeats: int) -> Costs:
    """On each rank: both contenders give equal results, and are then timed alternately."""
    ours, peer = pair(group, size // 4)
    torch.testing.assert_close(ours(), peer(), rtol=0, atol=0)
    return in_turn(group, {OURS: ours, PEER: peer}, repeats)


def ring_all_reduce_pair(group: Group, numel: int) -> Contenders:
    tensor = torch.full((numel,), 1.0 + group.rank)  # gloo works in place, and sums sums of sums

    def gloo() -> torch.Tensor:
        dist.all_reduce(tensor, group=group.process_group)
        return tensor

    return lambda: ring_all_reduce(group, tensor), gloo


def ring_reduce_scatter_pair(group: Group, numel: int) -> Contenders:
    tensor = torch.arange(numel, dtype=torch.float32) + group.rank
    chunk = torch.empty(numel // group.size)

    def gloo() -> torch.Tensor:
        REDUCE_SCATTER(chunk, tensor, group=group.process_group)
        return chunk

    return lambda: ring_reduce_scatter(group, tensor), gloo


def ring_all_gather_pair(group: Group, numel: int) -> Contenders:
    chunk = torch.full((numel // group.size,), float(group.rank))
    whole = torch.empty(numel)
    sizes = [chunk.numel()] * group.size  # known to both in advance

    def gloo() -> torch.Tensor:
        ALL_GATHER(whole, chunk, group=group.process_group)
        return whole

    return lambda: ring_all_gather(group, chunk, sizes), gloo
