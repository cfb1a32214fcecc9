"""SwiGLU's product, silu(gate)·up, with two tensors kept for backward instead of three.

Written down plainly, autograd saves gate, up and silu(gate). The last one costs less to make again
than to keep: B·T·F numbers a layer, of the 3·B·T·F. Forward and backward give the same bits.
Papers: Shazeer, arXiv 2002.05202; cf. Rabe and Staats, 2112.05682, on what to make again.
Shapes: B batch  T tokens  F width in the MLP.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable


def swiglu_naive(gate: Tensor, up: Tensor) -> Tensor:
    """gate and up (B, T, F) -> (B, T, F)."""
    return F.silu(gate) * up


def swiglu(gate: Tensor, up: Tensor) -> Tensor:
    """The same, with silu(gate) made again in backward."""
    return _SwiGLU.apply(gate, up)


class _SwiGLU(torch.autograd.Function):
    @staticmethod
    def forward(ctx, gate: Tensor, up: Tensor) -> Tensor:
        ctx.save_for_backward(gate, up)
        return F.silu(gate).mul_(up)

    @staticmethod
    @once_differentiable
    def backward(ctx, dy: Tensor) -> tuple[Tensor, Tensor]:
        gate, up = ctx.saved_tensors
        dgate = torch.ops.aten.silu_backward(dy * up, gate)
        return dgate, F.silu(gate).mul_(dy)
