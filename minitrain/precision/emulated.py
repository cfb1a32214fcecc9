"""Linear layers rounded to a narrow float: its numbers, emulated, without its speed."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from minitrain.model.swap import swap_linears


class _Rounded(torch.autograd.Function):
    """x as `dtype` would hold it, and in backward its gradient too; the tensors stay float32."""

    @staticmethod
    def forward(ctx, x: Tensor, dtype: torch.dtype) -> Tensor:
        ctx.dtype = dtype
        return x.to(dtype).to(x.dtype)

    @staticmethod
    def backward(ctx, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient.to(ctx.dtype).to(gradient.dtype), None


def rounded(x: Tensor, dtype: torch.dtype) -> Tensor:
    """Rounds x, and its gradient, through `dtype`: overflow becomes inf, underflow 0."""
    return _Rounded.apply(x, dtype)


class EmulatedLinear(nn.Linear):
    """A linear layer as a `dtype` matmul computes it, emulated: nothing is saved, and no time won.

    Operands, result and all their gradients are rounded to `dtype`; products are added in float32,
    as the matrix units of GPUs do. On CPUs a true float16 matmul is 100 times slower than this.
    """

    def __init__(self, linear: nn.Linear, dtype: torch.dtype):
        nn.Module.__init__(self)
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self.weight, self.bias, self.dtype = linear.weight, linear.bias, dtype

    def forward(self, x: Tensor) -> Tensor:
        x, weight = rounded(x, self.dtype), rounded(self.weight, self.dtype)
        return rounded(F.linear(x, weight, self.bias), self.dtype)


def emulate(model: nn.Module, dtype: torch.dtype = torch.float16) -> nn.Module:
    """Exchanges every linear layer of `model`, in place; the weights stay the same tensors."""
    swap_linears(model, lambda linear: EmulatedLinear(linear, dtype))
    return model
