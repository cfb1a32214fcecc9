"""Linears split over N ranks: by column, each rank produces its features; by row, it consumes them.

    column   y = x·Wᵀ   W (F/N, D)   x whole -> y split    backward sums dx over the ranks
    row      y = x·Wᵀ   W (D, F/N)   x split -> y whole    forward sums y over the ranks

    conjugates       backward   dx ─ all-reduce ─ dW       waits for the sum
    column_linears   backward   dx ─ dW ─                  the sum overlaps with dW
                                   ‖ all-reduce

Several column linears of one input share one all-reduce, of their summed input gradient. With
`sequence`, x and y of width D hold T/N tokens a rank: an all-gather before, a reduce-scatter after.
Only the T/N tokens are kept for backward, and gathered again (‖ dx).
Paper: Shoeybi et al., arXiv 1909.08053. Lab: e02b_tensor_parallel.
Shapes: B batch  T tokens  D width  F features  N ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from einops import rearrange
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.utils._python_dispatch import _get_current_dispatch_mode

from minitrain.parallel.collectives.overlapped import (
    start_all_reduce,
    start_gather,
    start_reduce_scatter_sum,
)
from minitrain.parallel.layout import Slice, take_slice
from minitrain.ranks.group import Group

Operator = Callable[[Tensor], Tensor]
Pair = tuple[Tensor, "Tensor | None"]  # weight (F/N, D) and bias (F/N,)


def conjugates(there: Operator, back: Operator) -> tuple[Operator, Operator]:
    """Two operators, each the backward of the other. `there` and `back` may work in place."""

    class First(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return there(x.clone())

        @staticmethod
        def backward(ctx: Any, dy: Tensor) -> Tensor:
            return back(dy.clone())

    class Second(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return back(x.clone())

        @staticmethod
        def backward(ctx: Any, dy: Tensor) -> Tensor:
            return there(dy.clone())

    return First.apply, Second.apply


def column_linears(
    x: Tensor, pairs: Sequence[Pair], group: Group, sequence: bool = False
) -> tuple[Tensor, ...]:
    """x (B, T, D), or (B, T/N, D) with `sequence` -> this rank's features (B, T, F/N) per pair.

    Backward's single sum for all overlaps with the weights' gradients. With `sequence` T/N tokens
    are kept for it, and gathered again while the input's gradient is computed.
    """
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
        whole = start_gather(group, x, dim=1)() if sequence else x  # (B, T, D)
        return tuple(F.linear(whole, weight, bias) for weight, bias in zip(weights, biases))

    @staticmethod
    @once_differentiable
    def backward(ctx, *gradients: Tensor):
        x, *weights = ctx.saved_tensors
        for_x, for_weights = ctx.needs_input_grad[0], any(ctx.needs_input_grad[3::2])
        whole, dx = (lambda: x), (lambda: None)
        if ctx.sequence and for_weights:
            whole = start_gather(ctx.group, x, dim=1)
        if for_x:
            dx = _start_sum(ctx.group, _input_gradient(gradients, weights), ctx.sequence)
        x, flat = whole(), []
        for i, dy in enumerate(gradients):
            for_weight, for_bias = ctx.needs_input_grad[3 + 2 * i : 5 + 2 * i]
            flat.append(rows(dy).T @ rows(x) if for_weight else None)  # (F/N, D)
            flat.append(rows(dy).sum(dim=0) if for_bias else None)
        return dx(), None, None, *flat


def _input_gradient(gradients: Sequence[Tensor], weights: Sequence[Tensor]) -> Tensor:
    """Σ dy (B, T, F/N) · W (F/N, D), accumulated by the matmuls -> (B, T, D), a new tensor."""
    dx = rows(gradients[0]) @ weights[0]
    for dy, weight in zip(gradients[1:], weights[1:]):
        dx.addmm_(rows(dy), weight)
    return dx.view(*gradients[0].shape[:-1], -1)


def _start_sum(group: Group, part: Tensor, sequence: bool) -> Callable[[], Tensor]:
    """Starts the sum of the ranks' parts (B, T, D), overwriting `part`; -> (B, T or T/N, D)."""
    if sequence:
        return start_reduce_scatter_sum(group, part, dim=1)
    return start_all_reduce(group, part)


def row_linear(
    x: Tensor, weight: Tensor, bias: Tensor | None, group: Group, sequence: bool = False
) -> Tensor:
    """x (B, T, F/N), weight (D, F/N) -> (B, T, D), or (B, T/N, D) with `sequence`.

    Summed in the matmul's own buffer; the bias (D,) is added afterwards, or it would count N times.
    """
    if group.size == 1:
        return F.linear(x, weight, bias)
    return _Row.apply(*autocast(x, weight, bias), group, sequence)


class _Row(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x: Tensor, weight: Tensor, bias: Tensor | None, group: Group, sequence: bool):
        ctx.group, ctx.sequence = group, sequence
        ctx.save_for_backward(x, weight)
        y = F.linear(x, weight)  # (B, T, D), a part
        if _get_current_dispatch_mode() is not None:  # selective recomputation keeps this result,
            y = y.clone()  # and would sum it once more if it were overwritten
        y = _start_sum(group, y, sequence)()
        return y if bias is None else y.add_(bias)

    @staticmethod
    @once_differentiable
    def backward(ctx, dy: Tensor):
        x, weight = ctx.saved_tensors
        whole = start_gather(ctx.group, dy, dim=1)() if ctx.sequence else dy  # (B, T, D)
        dx = whole @ weight if ctx.needs_input_grad[0] else None  # (B, T, F/N)
        dw = rows(whole).T @ rows(x) if ctx.needs_input_grad[1] else None  # (D, F/N)
        db = rows(dy).sum(dim=0) if ctx.needs_input_grad[2] else None
        return dx, dw, db, None, None


def rows(x: Tensor) -> Tensor:
    return rearrange(x, "b t d -> (b t) d")


def autocast(x: Tensor, *parameters: Tensor | None) -> tuple[Tensor | None, ...]:
    """Casts arguments as F.linear does under autocast, for our own autograd functions."""
    device = x.device.type
    if not torch.is_autocast_enabled(device):
        return x, *parameters
    dtype = torch.get_autocast_dtype(device)
    return tuple(None if tensor is None else tensor.to(dtype) for tensor in (x, *parameters))


# ---- layers, cut from those of a one-process model ----


class CutLinear(nn.Module):
    def __init__(self, group: Group, sequence: bool) -> None:
        super().__init__()
        self.group, self.sequence = group, sequence


class ColumnLinear(CutLinear):
    """The rows `part` of a linear's matrix (F, D), which produce this rank's F/N features.

    Several are computed together (`column_linears`), so none of them can be wrapped by another
    module.
    """

    def __init__(
        self, linear: nn.Linear, group: Group, part: Slice, sequence: bool = False
    ) -> None:
        super().__init__(group, sequence)
        self.weight, self.bias = (take_slice(p, part, "tp") for p in (linear.weight, linear.bias))

    def forward(self, x: Tensor) -> Tensor:
        (y,) = column_linears(x, [(self.weight, self.bias)], self.group, self.sequence)
        return y


class RowLinear(CutLinear):
    """The columns `part` of a linear's matrix (D, F), which consume this rank's F/N features."""

    def __init__(
        self, linear: nn.Linear, group: Group, part: Slice, sequence: bool = False
    ) -> None:
        super().__init__(group, sequence)
        self.weight, self.bias = take_slice(linear.weight, part, "tp"), linear.bias

    def forward(self, x: Tensor) -> Tensor:
        return row_linear(x, self.weight, self.bias, self.group, self.sequence)
