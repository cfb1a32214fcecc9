"""Tensor parallelism: every matrix of a layer is cut over N ranks, and two sums a layer join them.

A column linear makes 1/N of the outputs, the row linear after it takes them as its 1/N of the
inputs; what it gives is a part of the sum. Between the two, attention and MLP work on their own
heads and features. Each rank holds 1/N of the matrices, FLOPs and inner activations.

    forward    x ─ copy ─ q,k,v ─ attend ─ o ─ all-reduce ─ + ─ copy ─ gate,up ─ down ─ all-reduce
    backward       all-reduce  ‖ the weight gradients of q, k, v     all-reduce  ‖ those of gate, up

    sequence=False   2 all-reduces forward, 2 backward         a layer sends 8(N-1)/N·S bytes
    sequence=True    all-gather before, reduce-scatter after   10(N-1)/N·S: backward gathers x again

S = B·T·D numbers. With `sequence` norms and the stream hold T/N tokens a rank, and so the gradients
of norms and row biases are parts over tp. `traffic.py` has the bytes. Papers: Shoeybi et al., arXiv
1909.08053; Korthikanti et al., 2205.05198 (sequence). Lab: e02b_tensor_parallel.
Shapes: B batch  T tokens  D width  F features  H heads  K key/value heads  C head size  N ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
import torch.nn.functional as F
from einops import rearrange
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from minitrain.model.attention import Attention
from minitrain.model.rope import Rotation
from minitrain.model.transformer import MLP, Transformer
from minitrain.parallel.conjugate import (
    all_gather,
    copy,
    gathered,
    reduce,
    reduce_scatter,
    start_all_reduce,
    start_gather,
    start_reduce_scatter,
)
from minitrain.parallel.group import Group
from minitrain.parallel.heads import heads_of, share, shared_rows
from minitrain.parallel.layout import lay_out, layout_of
from minitrain.parallel.slices import Slice, cut, even_slice, padded_slice
from minitrain.parallel.vocabulary import VocabularyEmbedding

Pair = tuple[Tensor, "Tensor | None"]  # weight (F/N, D) and bias (F/N,)


def column_linears_naive(
    x: Tensor, pairs: Sequence[Pair], group: Group, sequence: bool = False
) -> tuple[Tensor, ...]:
    """x (B, T, D), or (B, T/N, D) with `sequence` -> this rank's features (B, T, F/N), a pair each.

    All read one copy of x, so that backward sums the gradient once for all; it waits for the sum.
    """
    x = all_gather(x, group, dim=1) if sequence else copy(x, group)
    return tuple(F.linear(x, weight, bias) for weight, bias in pairs)


def column_linears(
    x: Tensor, pairs: Sequence[Pair], group: Group, sequence: bool = False
) -> tuple[Tensor, ...]:
    """The same; the sum travels while the weights' gradients are computed. With `sequence` T/N
    tokens are kept for backward, and gathered again while the input's gradient is computed."""
    if group.size == 1:
        return tuple(F.linear(x, weight, bias) for weight, bias in pairs)
    x, *flat = autocast(x, *(tensor for pair in pairs for tensor in pair))
    return _Columns.apply(x, group, sequence, *flat)


class _Columns(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x: Tensor, group: Group, sequence: bool, *flat: Tensor | None):
        weights, biases = flat[::2], flat[1::2]
        ctx.group, ctx.sequence = group, sequence
        ctx.save_for_backward(x, *weights)
        whole = gathered(x, group, dim=1) if sequence else x  # (B, T, D)
        return tuple(F.linear(whole, weight, bias) for weight, bias in zip(weights, biases))

    @staticmethod
    @once_differentiable
    def backward(ctx, *gradients: Tensor):
        x, *weights = ctx.saved_tensors
        for_x, for_weights = ctx.needs_input_grad[0], any(ctx.needs_input_grad[3::2])
        whole, dx = (lambda: x), (lambda: None)
        if ctx.sequence and for_weights:
            whole = start_gather(x, ctx.group, dim=1)
        if for_x:
            dx = _start_sum(_input_gradient(gradients, weights), ctx.group, ctx.sequence)
        x, flat = whole(), []
        for i, dy in enumerate(gradients):
            for_weight, for_bias = ctx.needs_input_grad[3 + 2 * i : 5 + 2 * i]
            flat.append(rows(dy).T @ rows(x) if for_weight else None)  # (F/N, D)
            flat.append(rows(dy).sum(dim=0) if for_bias else None)
        return dx(), None, None, *flat


def _input_gradient(gradients: Sequence[Tensor], weights: Sequence[Tensor]) -> Tensor:
    """The sum of dy (B, T, F/N) · W (F/N, D), added up in the matmuls -> (B, T, D), fresh."""
    dx = rows(gradients[0]) @ weights[0]
    for dy, weight in zip(gradients[1:], weights[1:]):
        dx.addmm_(rows(dy), weight)
    return dx.view(*gradients[0].shape[:-1], -1)


def _start_sum(part: Tensor, group: Group, sequence: bool) -> Callable[[], Tensor]:
    """Issues the sum of the ranks' parts (B, T, D), each a fresh tensor; -> (B, T or T/N, D)."""
    return start_reduce_scatter(part, group, dim=1) if sequence else start_all_reduce(part, group)


def row_linear_naive(
    x: Tensor, weight: Tensor, bias: Tensor | None, group: Group, sequence: bool = False
) -> Tensor:
    """x (B, T, F/N), weight (D, F/N) -> (B, T, D), or (B, T/N, D) with `sequence`.

    The bias (D,) is added after the sum: before, it would be there N times.
    """
    y = F.linear(x, weight)  # (B, T, D), a part
    y = reduce_scatter(y, group, dim=1) if sequence else reduce(y, group)
    return y if bias is None else y + bias


def row_linear(
    x: Tensor, weight: Tensor, bias: Tensor | None, group: Group, sequence: bool = False
) -> Tensor:
    """The same, summed in the matmul's own buffer instead of a copy of it."""
    if group.size == 1:
        return F.linear(x, weight, bias)
    return _Row.apply(*autocast(x, weight, bias), group, sequence)


class _Row(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x: Tensor, weight: Tensor, bias: Tensor | None, group: Group, sequence: bool):
        ctx.group, ctx.sequence = group, sequence
        ctx.save_for_backward(x, weight)
        y = F.linear(x, weight)  # (B, T, D), a part
        y = _start_sum(y, group, sequence)()
        return y if bias is None else y.add_(bias)

    @staticmethod
    @once_differentiable
    def backward(ctx, dy: Tensor):
        x, weight = ctx.saved_tensors
        whole = gathered(dy, ctx.group, dim=1) if ctx.sequence else dy  # (B, T, D)
        dx = whole @ weight if ctx.needs_input_grad[0] else None  # (B, T, F/N)
        dw = rows(whole).T @ rows(x) if ctx.needs_input_grad[1] else None  # (D, F/N)
        db = rows(dy).sum(dim=0) if ctx.needs_input_grad[2] else None
        return dx, dw, db, None, None


def rows(x: Tensor) -> Tensor:
    return rearrange(x, "b t d -> (b t) d")


def autocast(x: Tensor, *parameters: Tensor | None) -> tuple[Tensor | None, ...]:
    """What F.linear does to its arguments under autocast, where our own functions begin."""
    device = x.device.type
    if not torch.is_autocast_enabled(device):
        return x, *parameters
    dtype = torch.get_autocast_dtype(device)
    return tuple(None if tensor is None else tensor.to(dtype) for tensor in (x, *parameters))


# ---- layers, cut from those of a one-process model ----


class ColumnLinear(nn.Module):
    """The rows `part` of a linear's matrix (F, D), which make this rank's F/N features.

    `owned`: those of its rows that no lower rank holds, where ranks share some.
    """

    def __init__(
        self,
        linear: nn.Linear,
        group: Group,
        part: Slice,
        sequence: bool = False,
        owned: range | None = None,
    ) -> None:
        super().__init__()
        self.group, self.sequence = group, sequence
        self.weight, self.bias = (cut(p, part, owned) for p in (linear.weight, linear.bias))

    def forward(self, x: Tensor) -> Tensor:
        return column_linears(x, [(self.weight, self.bias)], self.group, self.sequence)[0]


class RowLinear(nn.Module):
    """The columns `part` of a linear's matrix (D, F), which read this rank's F/N features."""

    def __init__(
        self, linear: nn.Linear, group: Group, part: Slice, sequence: bool = False
    ) -> None:
        super().__init__()
        self.group, self.sequence = group, sequence
        self.weight, self.bias = cut(linear.weight, part), linear.bias

    def forward(self, x: Tensor) -> Tensor:
        return row_linear(x, self.weight, self.bias, self.group, self.sequence)


class TensorAttention(Attention):
    """This rank's query heads, and the key/value heads that they read."""

    def __init__(self, attention: Attention, group: Group, sequence: bool = False) -> None:
        nn.Module.__init__(self)  # Attention's own would make whole matrices
        self.group, self.sequence = group, sequence
        self.head_size, self.kernel = attention.head_size, attention.kernel
        size, (width, kv_width) = (
            self.head_size,
            (len(z.weight) for z in (attention.q, attention.k)),
        )
        self.heads = heads_of(group.rank, group.size, width // size, kv_width // size)
        self.shared = shared_rows(group, self.heads, size)
        keys, owned = self.heads.keys, None
        if self.heads.shared:
            owned = range((self.heads.owned.start - keys.start) * size, len(keys) * size)
        columns = even_slice("attention's width", width, group, dim=0)
        kv_columns = Slice(0, keys.start * size, len(keys) * size, kv_width)
        self.q = ColumnLinear(attention.q, group, columns, sequence)
        self.k = ColumnLinear(attention.k, group, kv_columns, sequence, owned)
        self.v = ColumnLinear(attention.v, group, kv_columns, sequence, owned)
        self.o = RowLinear(attention.o, group, replace(columns, dim=1), sequence)

    def forward(self, x: Tensor, turns: Rotation, mask: Tensor | None = None) -> Tensor:
        """x (B, T, D), or (B, T/N, D) with `sequence` -> the same."""
        k, v = share([(z.weight, z.bias) for z in (self.k, self.v)], self.shared)
        pairs = [(self.q.weight, self.q.bias), k, v]
        q, k, v = column_linears(x, pairs, self.group, self.sequence)  # (B, T, H·C/N), (…K·C…)
        return self.o(self.attend(q, self._as_read(k), self._as_read(v), turns, mask))

    def _as_read(self, z: Tensor) -> Tensor:
        """Keys or values (B, T, K·C), one a query head where the groups here are not equal."""
        if self.heads.is_grouped:
            return z
        return rearrange(self.split(z)[:, :, self.heads.reads], "b t h c -> b t (h c)")


class TensorMLP(nn.Module):
    """This rank's F/N features: `gate` and `up` make them, `down` sums over all ranks'."""

    def __init__(self, mlp: MLP, group: Group, sequence: bool = False) -> None:
        super().__init__()
        self.group, self.sequence = group, sequence
        columns = even_slice("ffn_size", len(mlp.gate.weight), group, dim=0)
        self.gate = ColumnLinear(mlp.gate, group, columns, sequence)
        self.up = ColumnLinear(mlp.up, group, columns, sequence)
        self.down = RowLinear(mlp.down, group, replace(columns, dim=1), sequence)

    def forward(self, x: Tensor) -> Tensor:
        """x (B, T, D), or (B, T/N, D) with `sequence` -> the same."""
        pairs = [(z.weight, z.bias) for z in (self.gate, self.up)]
        gate, up = column_linears(x, pairs, self.group, self.sequence)  # (B, T, F/N)
        return self.down(F.silu(gate) * up)


def tensor_parallel(model: Transformer, group: Group, sequence: bool = False) -> Transformer:
    """Leaves on each rank its slices of a one-process model, which every rank has alike.

    The model itself is changed, and returned. It gives this rank's logits (B, T, V/N), for
    `vocabulary_parallel_loss`. An MLP of another kind than `MLP` (experts) stays whole.
    """
    config = model.config
    heads_of(group.rank, group.size, config.heads, config.kv_heads)  # refuse before any change
    model.embed = VocabularyEmbedding(model.embed, group, sequence)
    for block in model.blocks:
        if isinstance(block.mlp, MLP):
            block.mlp = TensorMLP(block.mlp, group, sequence)
        block.attention = TensorAttention(block.attention, group, sequence)
    part = padded_slice(config.vocab_size, group, dim=0)
    model.head = ColumnLinear(model.head, group, part, sequence)
    model.tie()
    if sequence:
        model.sequence_ranks = group.size
        for parameter in model.parameters():
            if "tp" not in layout_of(parameter).split:
                lay_out(parameter, partial="tp")
    return model
