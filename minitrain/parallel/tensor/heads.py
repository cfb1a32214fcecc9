"""Heads of grouped-query attention over N ranks: which a rank has, and which it shares.

Each rank takes H/N query heads in a row, and the key/value heads that these read. Where N does not
divide K, some are read on several ranks, and each of those holds a copy:

    H = 8, K = 2, N = 4      rank     0     1     2     3
                             queries  0 1   2 3   4 5   6 7
                             keys     0     0     1     1        0 is on ranks 0 and 1

The gradient of a copy is a part: it is summed over the ranks that share the head, in one message a
layer of 2·C·D numbers a shared head (key and value), so that the copies stay equal. The lowest of
these ranks *owns* the head: where elements are counted or saved, it alone does so.
Shapes: C head size  D width  N ranks. Lab: e02b_tensor_parallel.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from einops import rearrange
from torch import Tensor
from torch.autograd.function import once_differentiable

from minitrain.errors import divide
from minitrain.ranks.group import Group


@dataclass(frozen=True)
class Heads:
    """One rank's heads; `shared` has, for each head of `keys` that others hold too, all holders."""

    queries: range
    keys: range
    reads: tuple[int, ...]  # for each of `queries`, the place of its head among `keys`
    owned: range  # of `keys`: those that no lower rank holds
    shared: dict[int, tuple[int, ...]]

    @property
    def is_grouped(self) -> bool:
        """True if the same number of queries, in order, reads every head of `keys`."""
        group = len(self.queries) // len(self.keys)
        return self.reads == tuple(i // group for i in range(len(self.queries)))

    def owned_rows(self, head_size: int) -> range | None:
        """The rows of the local k and v that belong to the heads in `owned`; None means all of
        them."""
        if not self.shared:
            return None
        return range((self.owned.start - self.keys.start) * head_size, len(self.keys) * head_size)


def heads_of(rank: int, ranks: int, heads: int, kv_heads: int) -> Heads:
    """H query heads, split evenly, and the key/value heads they read."""
    count = divide("heads", heads, ranks)
    mine = [_span(r, count, heads // kv_heads) for r in range(ranks)]
    queries, keys = mine[rank]
    holders = {k: tuple(r for r in range(ranks) if k in mine[r][1]) for k in keys}
    owned = [k for k in keys if holders[k][0] == rank]
    return Heads(
        queries,
        keys,
        tuple(query // (heads // kv_heads) - keys.start for query in queries),
        range(keys.stop - len(owned), keys.stop),
        {k: ranks_ for k, ranks_ in holders.items() if len(ranks_) > 1},
    )


def _span(rank: int, count: int, group: int) -> tuple[range, range]:
    """Rank r's `count` query heads, and the key/value heads of `group` queries each they read."""
    queries = range(rank * count, (rank + 1) * count)
    return queries, range(queries.start // group, (queries.stop - 1) // group + 1)


@dataclass(frozen=True)
class SharedRows:
    """Rows of k and v that other ranks hold too: a shared head's C rows here, and its holders."""

    rows: tuple[slice, ...]
    groups: tuple[Group, ...]


def shared_rows(group: Group, plan: Heads, head_size: int) -> SharedRows:
    """Makes the group of each shared head, for all layers. Collective among its holders."""
    starts = [(k - plan.keys.start) * head_size for k in plan.shared]
    rows = tuple(slice(start, start + head_size) for start in starts)
    return SharedRows(rows, tuple(group.subgroup(ranks) for ranks in plan.shared.values()))


def share(
    pairs: Sequence[tuple[Tensor, Tensor | None]], shared: SharedRows
) -> list[tuple[Tensor, Tensor | None]]:
    """Weights (K·C/N, D) and biases (K·C/N,) as they are; backward sums their shared rows."""
    if not shared.rows:
        return list(pairs)
    flat = iter(_Share.apply(shared, *(z for pair in pairs for z in pair if z is not None)))
    return [tuple(None if z is None else next(flat) for z in pair) for pair in pairs]


class _Share(torch.autograd.Function):
    @staticmethod
    def forward(ctx, shared: SharedRows, *parameters: Tensor) -> tuple[Tensor, ...]:
        ctx.shared = shared
        return tuple(p.view_as(p) for p in parameters)

    @staticmethod
    @once_differentiable
    def backward(ctx, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        gradients = tuple(g.clone() for g in gradients)
        for rows, group in zip(ctx.shared.rows, ctx.shared.groups):
            parts = [rearrange(g[rows], "c ... -> (c ...)") for g in gradients]
            total = group.all_reduce(torch.cat(parts))  # one message for all of them
            for gradient, part in zip(gradients, total.split([len(p) for p in parts])):
                gradient[rows] = part.view_as(gradient[rows])
        return None, *gradients
