"""E experts, each a SwiGLU of its own, as three stacked weights and one grouped matmul for each.

Rows come sorted by expert, so expert e's are one contiguous segment, and a grouped matmul is E
matmuls side by side: a single kernel where torch has one, else a loop that writes into one output.

    y = (silu(x G_e) · x U_e) D_e        for each row x of expert e

Written down plainly, autograd saves x, and 4·F numbers a row. g = x G and u = x U are enough: their
product is made again in backward, cheaper than it is kept. Cost: 6·R·D·F FLOPs forward whatever E,
where the naive one, all experts for all tokens, takes 6·M·E·D·F; saves R·(D + 2·F) numbers.
Paper: MegaBlocks, arXiv 2211.15841. Lab: e02d_expert_parallel.
Shapes: M tokens  R rows  E experts  D width  F width in an expert.
"""

from __future__ import annotations

from functools import lru_cache

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable


def experts_naive(x: Tensor, weights: Tensor, gate: Tensor, up: Tensor, down: Tensor) -> Tensor:
    """Every expert for every token: x (M, D), weights (M, E), 0 where not chosen, -> (M, D)."""
    out = torch.zeros_like(x)
    for expert, weight in enumerate(weights.unbind(1)):
        hidden = F.silu(x @ gate[expert]) * (x @ up[expert])  # (M, F)
        out = out + weight.unsqueeze(1) * (hidden @ down[expert])  # (M, D)
    return out


class Experts(nn.Module):
    """Answers for rows sorted by expert; an expert without rows gets gradients of zero."""

    def __init__(self, experts: int, width: int, inner: int):
        super().__init__()
        self.gate = nn.Parameter(torch.empty(experts, width, inner))  # (E, D, F)
        self.up = nn.Parameter(torch.empty(experts, width, inner))  # (E, D, F)
        self.down = nn.Parameter(torch.empty(experts, inner, width))  # (E, F, D)
        for weight in self.parameters():
            nn.init.normal_(weight, std=weight.shape[1] ** -0.5)

    def forward(self, rows: Tensor, counts: Tensor) -> Tensor:
        """rows (R, D), counts (E,) of sum R -> (R, D)."""
        gate, up, down = (weight.to(rows.dtype) for weight in (self.gate, self.up, self.down))
        return _SwiGLU.apply(rows, gate, up, down, counts)


class _SwiGLU(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x: Tensor, gate: Tensor, up: Tensor, down: Tensor, counts: Tensor) -> Tensor:
        g, u = grouped_matmul(x, gate, counts), grouped_matmul(x, up, counts)  # (R, F)
        ctx.save_for_backward(x, g, u, gate, up, down, counts)
        return grouped_matmul(F.silu(g).mul_(u), down, counts)  # (R, D)

    @staticmethod
    @once_differentiable
    def backward(ctx, dy: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, None]:
        x, g, u, gate, up, down, counts = ctx.saved_tensors
        dy = dy.contiguous()
        a = F.silu(g)  # (R, F)
        ddown = grouped_outer(a * u, dy, counts)
        dh = grouped_matmul(dy, down.mT, counts)  # (R, F)
        du = a.mul_(dh)
        dg = torch.ops.aten.silu_backward(dh.mul_(u), g)  # (R, F)
        dx = grouped_matmul(dg, gate.mT, counts)
        dx += grouped_matmul(du, up.mT, counts)
        return dx, grouped_outer(x, dg, counts), grouped_outer(x, du, counts), ddown, None


def grouped_matmul(x: Tensor, weights: Tensor, counts: Tensor) -> Tensor:
    """x (R, D), weights (E, D, F) -> (R, F): each expert's segment of rows times its matrix."""
    if has_kernel(x, weights):
        return torch._grouped_mm(x, weights, offs=_ends(counts))
    out = x.new_empty(len(x), weights.shape[2])
    sizes = counts.tolist()
    for segment, weight, place in zip(x.split(sizes), weights, out.split(sizes)):
        torch.mm(segment, weight, out=place)
    return out


def grouped_outer(x: Tensor, y: Tensor, counts: Tensor) -> Tensor:
    """x (R, D), y (R, F) -> (E, D, F): each segment's xᵀ y, the gradient of its matrix."""
    if has_kernel(x, y):
        return torch._grouped_mm(x.mT, y, offs=_ends(counts))
    out = x.new_empty(len(counts), x.shape[1], y.shape[1])
    sizes = counts.tolist()
    for left, right, place in zip(x.split(sizes), y.split(sizes), out):
        torch.mm(left.mT, right, out=place)  # of no rows: zeros
    return out


def has_kernel(*operands: Tensor) -> bool:
    """Whether torch's grouped matmul takes these: it wants rows, and of whole 16 bytes."""
    fit = all(
        t.numel() and all(n == 1 or n * t.element_size() % 16 == 0 for n in t.stride())
        for t in operands
    )
    return fit and _kernel_runs(operands[0].dtype, operands[0].device.type)


@lru_cache
def _kernel_runs(dtype: torch.dtype, device: str) -> bool:
    """Tried once: it depends on the version, the device and the dtype."""
    try:
        x = torch.zeros(16, 16, dtype=dtype, device=device)
        torch._grouped_mm(x, x.unsqueeze(0), offs=torch.tensor([16], device=device).int())
    except (AttributeError, RuntimeError):
        return False
    return True


def _ends(counts: Tensor) -> Tensor:
    return counts.cumsum(0, dtype=torch.int32)  # (E,)
