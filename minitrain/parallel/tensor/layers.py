"""Tensor parallelism: every matrix of a layer is split over N ranks, with two all-reduces a layer.

A column linear produces 1/N of the features, and the row linear after it consumes them: its output
is a part of a sum. In between, attention and MLP work on their own heads and features. Each rank
holds 1/N of the matrices, of the FLOPs and of the activations in between.

    forward    x ─ q,k,v ─ attend ─ o ─ all-reduce ─ + ─ gate,up ─ down ─ all-reduce ─ +
    backward   all-reduce ‖ dW of q,k,v               all-reduce ‖ dW of gate,up

    sequence=False   2 all-reduces forward, 2 backward                   8(N-1)/N·S bytes a layer
    sequence=True    all-gathers before, reduce-scatters after instead   10(N-1)/N·S: x twice

S = 4·B·T·D. With `sequence`, norms and the residual stream hold T/N tokens a rank (memory / N), so
the gradients of norms and row biases are parts, to be summed over tp.

`parallel_mlp`, `parallel_attention` and `sequence_mlp` are the layers as lab e02b writes them: they
wait for every message, and keep gathered tensors for backward. They communicate through `tp`: its
`rank` and `size`, and operators on one tensor,

    copy, reduce                 whole -> whole, part -> whole        conjugates(same, all-reduce)
    all_gather, reduce_scatter   split -> whole, part -> split        conjugates(gather, sum-slice)
    max                          the largest over the ranks, without a gradient

Papers: Shoeybi et al., arXiv 1909.08053; Korthikanti et al., 2205.05198 (sequence).
Lab: e02b_tensor_parallel.
Shapes: B batch  T tokens  D width  F features  H heads  K key/value heads  C head size  N ranks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from einops import rearrange
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from minitrain.errors import InputError, divide
from minitrain.model.attention.grouped_query import Attention
from minitrain.model.mlp import MLP, swiglu
from minitrain.model.norm import rms_norm
from minitrain.model.rope import Rotation
from minitrain.model.transformer import Transformer
from minitrain.parallel.layout import Slice, even_slice, lay_out, layout_of, padded_slice
from minitrain.parallel.tensor.linear import ColumnLinear, Operator, RowLinear, column_linears
from minitrain.parallel.tensor.vocabulary import VocabularyEmbedding
from minitrain.ranks.group import Group


def parallel_mlp(x: Tensor, w: Any, enter: Operator, leave: Operator) -> Tensor:
    """w.gate, w.up (F/N, D), w.down (D, F/N), w.bias (D,); x is whole after `enter`."""
    x = enter(x)  # (B, T, D)
    inside = swiglu(x @ w.gate.T, x @ w.up.T)  # (B, T, F/N)
    return leave(inside @ w.down.T) + w.bias


def parallel_attention(x: Tensor, w: Any, enter: Operator, leave: Operator) -> Tensor:
    """Causal, on this rank's heads of `w.head_size`; w.q, w.k, w.v (D/N, D), w.o (D, D/N)."""
    x = enter(x)  # (B, T, D)
    q, k, v = (
        rearrange(x @ matrix.T, "b t (h c) -> b h t c", c=w.head_size) for matrix in (w.q, w.k, w.v)
    )  # (B, H/N, T, C)
    out = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    return leave(rearrange(out, "b h t c -> b t (h c)") @ w.o.T)


def sequence_mlp(x: Tensor, w: Any, tp: Any) -> Tensor:
    """x (B, T/N, D) plus the MLP of its norm, (B, T/N, D).

    Norm and bias see T/N tokens, so their gradients are parts: `copy` sums them.
    """
    n = tp.all_gather(rms_norm(x, tp.copy(w.norm), 1e-6))  # (B, T, D)
    inside = swiglu(n @ w.gate.T, n @ w.up.T)  # (B, T, F/N)
    return x + tp.reduce_scatter(inside @ w.down.T) + tp.copy(w.bias)


# ---- heads of grouped-query attention over N ranks ----


@dataclass(frozen=True)
class Heads:
    """One rank's heads: H/N consecutive query heads, and the key/value heads they read.

    If N does not divide K, some are read on several ranks, and each of those holds a copy:

        H = 8, K = 2, N = 4      rank     0     1     2     3
                                 queries  0 1   2 3   4 5   6 7
                                 keys     0     0     1     1        0 is on ranks 0 and 1

    The gradient of a copy is a part: it is summed over the ranks that share the head, in one
    message a layer of 2·C·D numbers a shared head (key and value), so that the copies stay equal.
    The lowest of these ranks *owns* the head: it alone counts or saves its elements. `shared` has,
    for each head of `keys` that other ranks hold too, all holders.
    """

    queries: range
    keys: range
    reads: tuple[int, ...]  # for each of `queries`, the index of its head in `keys`
    owned: range  # of `keys`: those that no lower rank holds
    shared: dict[int, tuple[int, ...]]

    @property
    def is_grouped(self) -> bool:
        """True if every head of `keys` is read by the same number of queries, in order."""
        group = len(self.queries) // len(self.keys)
        return self.reads == tuple(i // group for i in range(len(self.queries)))

    def owned_rows(self, head_size: int) -> range | None:
        """The rows of the local k and v that belong to heads in `owned`; None means all rows."""
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
    """Rank r's `count` query heads, and the key/value heads they read, one per `group` queries."""
    queries = range(rank * count, (rank + 1) * count)
    return queries, range(queries.start // group, (queries.stop - 1) // group + 1)


@dataclass(frozen=True)
class SharedRows:
    """Rows of k and v that other ranks hold too: a shared head's C local rows, and its holders."""

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
    """Weights (K·C/N, D) and biases (K·C/N,) unchanged; backward sums their shared rows."""
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


# ---- the layers of a model, cut from those of one process ----


class TensorAttention(Attention):
    """This rank's query heads, and the key/value heads that they read."""

    def __init__(
        self,
        attention: Attention,
        group: Group,
        heads: Heads,
        shared: SharedRows,
        sequence: bool = False,
    ) -> None:
        nn.Module.__init__(self)  # Attention's own would create whole matrices
        self.group, self.sequence = group, sequence
        self.kernel = attention.kernel
        size = self.head_size = attention.head_size
        width, kv_width = len(attention.q.weight), len(attention.k.weight)
        self.heads, self.shared = heads, shared
        columns = even_slice("features of attention", width, group, dim=0)
        first, count = heads.keys.start * size, len(heads.keys) * size
        kv_columns = Slice(0, first, count, kv_width, heads.owned_rows(size))
        self.q = ColumnLinear(attention.q, group, columns, sequence)
        self.k = ColumnLinear(attention.k, group, kv_columns, sequence)
        self.v = ColumnLinear(attention.v, group, kv_columns, sequence)
        self.o = RowLinear(attention.o, group, replace(columns, dim=1), sequence)

    def forward(self, x: Tensor, turns: Rotation, mask: Tensor | None = None) -> Tensor:
        """x (B, T, D), or (B, T/N, D) with `sequence` -> the same."""
        k, v = share([(z.weight, z.bias) for z in (self.k, self.v)], self.shared)
        pairs = [(self.q.weight, self.q.bias), k, v]
        q, k, v = column_linears(x, pairs, self.group, self.sequence)  # (B, T, H·C/N or K·C/N)
        return self.o(self.attend(q, self._as_read(k), self._as_read(v), turns, mask))

    def _as_read(self, z: Tensor) -> Tensor:
        """Keys or values (B, T, K·C), repeated per query head if the groups here are unequal."""
        if self.heads.is_grouped:
            return z
        return rearrange(self.split(z)[:, :, self.heads.reads], "b t h c -> b t (h c)")


class TensorMLP(nn.Module):
    """This rank's F/N features: `gate` and `up` produce them, `down` sums over all ranks."""

    def __init__(self, mlp: MLP, group: Group, sequence: bool = False) -> None:
        super().__init__()
        self.group, self.sequence = group, sequence
        columns = even_slice("features of the MLP", len(mlp.gate.weight), group, dim=0)
        self.gate = ColumnLinear(mlp.gate, group, columns, sequence)
        self.up = ColumnLinear(mlp.up, group, columns, sequence)
        self.down = RowLinear(mlp.down, group, replace(columns, dim=1), sequence)

    def forward(self, x: Tensor) -> Tensor:
        """x (B, T, D), or (B, T/N, D) with `sequence` -> the same."""
        pairs = [(z.weight, z.bias) for z in (self.gate, self.up)]
        gate, up = column_linears(x, pairs, self.group, self.sequence)  # (B, T, F/N)
        return self.down(swiglu(gate, up))


def tensor_parallel(model: Transformer, group: Group, sequence: bool = False) -> Transformer:
    """Keeps on each rank its slices of a one-process model, which must be the same on every rank.

    The model is changed in place and returned. It returns this rank's logits (B, T, V/N), for
    `vocabulary_parallel_loss`. An MLP of another kind than `MLP` (experts) stays whole.
    """
    config = model.config
    if getattr(model, "adaptation", None) is not None:
        raise InputError("this model's adapter would be lost: merge it before the model is cut")
    heads = heads_of(group.rank, group.size, config.heads, config.kv_heads)
    divide("features of the MLP", config.ffn_size, group.size)  # before anything is changed
    shared = shared_rows(group, heads, config.head_size)
    model.embed = VocabularyEmbedding(model.embed, group, sequence)
    for block in model.blocks:
        if isinstance(block.mlp, MLP):
            block.mlp = TensorMLP(block.mlp, group, sequence)
        block.attention = TensorAttention(block.attention, group, heads, shared, sequence)
    part = padded_slice(config.vocab_size, group, dim=0)
    model.head = ColumnLinear(model.head, group, part, sequence)
    model.tie()
    if sequence:
        model.sequence_ranks = group.size
        for parameter in model.parameters():
            if "tp" not in layout_of(parameter).split:
                lay_out(parameter, partial="tp")
    return model
