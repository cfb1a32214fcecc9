"""The norm of a gradient of which each rank has a shard, summed as FSDP2 sums it.

    ||g|| = norm over parameters of sqrt(n_0² + … + n_(N-1)²)    n_c: the norm of its c-th rows

In float32 the order of a sum changes its last digits, and a different last digit changes all
weights. So the terms are FSDP2's: n_c covers the rows that FSDP2 would keep on rank c (a
parameter's rows are split evenly), though a flat shard ends elsewhere. Rows across a shard
boundary go to the rank where they end: at most N-1 times a unit, each less than 1/N of a
parameter. The rest is one all-reduce of 4 bytes a parameter. On two ranks the result is FSDP2's
bit for bit. Source: torch.nn.utils.clip_grad_norm_ over DTensors, torch 2.13. Lab: e03.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn

from minitrain.parallel.zero.unit import Unit
from minitrain.ranks.group import Group


@torch.no_grad()
def global_norm(group: Group, units: Sequence[Unit], parameters: Sequence[nn.Parameter]) -> Tensor:
    """The 2-norm over all ranks' shards, a parameter at a time in the order of `parameters`."""
    index = {parameter: i for i, parameter in enumerate(parameters)}
    squares = units[0].shard.new_zeros(len(parameters))
    for unit in units:
        if unit.gradient is not None:
            unit.gradient_shelf.get()
            for parameter, rows in chunks(group, unit):
                norm = torch.linalg.vector_norm(rows, dtype=squares.dtype)
                squares[index[parameter]] += norm.square()
            unit.gradient_shelf.drop()
    group.all_reduce(squares)
    return torch.linalg.vector_norm(squares.sqrt())


def chunks(group: Group, unit: Unit) -> Iterator[tuple[nn.Parameter, Tensor]]:
    """(parameter, the gradient of its c-th rows), for all rows that end in this shard."""
    works, length = [], unit.shard.numel()
    for parameter, place in unit.places.items():
        size = rows_each(parameter, group.size)
        for low in range(place.start, place.stop, size):
            high = min(low + size, place.stop)
            first, last = low // length, (high - 1) // length  # the ranks that hold part of it
            if not first <= group.rank <= last:
                continue
            mine = unit.gradient[max(low - unit.mine.start, 0) : high - unit.mine.start]
            if group.rank < last:
                works.append(group.isend(mine, last))
                continue
            before = [
                mine.new_empty(min(length, (r + 1) * length - low)) for r in range(first, last)
            ]
            for rank, part in enumerate(before, first):
                group.recv(part, rank)
            yield parameter, torch.cat([*before, mine]) if before else mine
    for work in works:
        work.wait()


def rows_each(parameter: nn.Parameter, ranks: int) -> int:
    """Elements of the rows that FSDP2 puts on each rank but the last: torch.chunk along dim 0."""
    rows = max(1, parameter.shape[0]) if parameter.ndim else 1
    return max(1, -(-rows // ranks) * (parameter.numel() // rows))
