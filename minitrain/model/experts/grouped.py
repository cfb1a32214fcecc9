"""E experts, each its own SwiGLU, over rows sorted by expert.

    y = (silu(x G_e) · x U_e) D_e        for each row x of expert e

Expert e's rows are one contiguous segment, so a loop processes it whole and writes into its segment
of one output; on a GPU a grouped-matmul kernel does all segments at once. Plain autograd saves 4·F
numbers a row for backward; g = x G and u = x U are enough, since recomputing their product costs
less than storing it. Gate and up are one node of the graph and down another, so that each frees
what it has used.

Cost: 6·R·D·F FLOPs forward for any E, where the naive version, all experts for all tokens, takes
6·M·E·D·F; saves R·(D + 2·F) numbers. Paper: MegaBlocks, arXiv 2211.15841. Lab:
e02d_expert_parallel. Shapes: M tokens  R rows  E experts  D width  F width in an expert.
"""

from __future__ import annotations

from functools import lru_cache

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from minitrain.model.mlp import swiglu


def experts_naive(x: Tensor, weights: Tensor, gate: Tensor, up: Tensor, down: Tensor) -> Tensor:
    """Every expert for every token: x (M, D), weights (M, E), 0 where not chosen, -> (M, D)."""
    out = torch.zeros_like(x)
    for expert, weight in enumerate(weights.unbind(1)):
        hidden = F.silu(x @ gate[expert]) * (x @ up[expert])  # (M, F)
        out = out + weight.unsqueeze(1) * (hidden @ down[expert])  # (M, D)
    return out


class Experts(nn.Module):
    """Expert outputs for rows sorted by expert; experts without rows get zero gradients."""

    def __init__(self, experts: int, width: int, inner: int):
        super().__init__()
        self.gate = nn.Parameter(torch.empty(experts, width, inner))  # (E, D, F)
        self.up = nn.Parameter(torch.empty(experts, width, inner))  # (E, D, F)
        self.down = nn.Parameter(torch.empty(experts, inner, width))  # (E, F, D)
        for weight in self.parameters():
            nn.init.normal_(weight, std=weight.shape[1] ** -0.5)

    def forward(self, rows: Tensor, counts: Tensor) -> Tensor:
        """rows (R, D), counts (E,) summing to R -> (R, D)."""
        weights = [weight.to(rows.dtype) for weight in (self.gate, self.up, self.down)]
        if has_kernel(rows, *weights):
            return grouped_swiglu(rows, *weights, counts)
        return looped_swiglu(rows, *weights, counts)


def looped_swiglu(x: Tensor, gate: Tensor, up: Tensor, down: Tensor, counts: Tensor) -> Tensor:
    """x (R, D), gate and up (E, D, F), down (E, F, D), counts (E,) -> (R, D)."""
    sizes = counts.tolist()
    g, u = _GateUp.apply(x, gate, up, sizes)  # (R, F) both
    return _Down.apply(g, u, down, sizes)


def grouped_swiglu(x: Tensor, gate: Tensor, up: Tensor, down: Tensor, counts: Tensor) -> Tensor:
    """`looped_swiglu` by torch's kernel, which has its own backward."""
    ends = counts.cumsum(0, dtype=torch.int32)  # (E,)
    g, u = (torch._grouped_mm(x, weight, offs=ends) for weight in (gate, up))  # (R, F)
    return torch._grouped_mm(swiglu(g, u), down, offs=ends)


class _GateUp(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx, x: Tensor, gate: Tensor, up: Tensor, sizes: list[int]
    ) -> tuple[Tensor, Tensor]:
        ctx.save_for_backward(x, gate, up)
        ctx.sizes = sizes
        g, u = (x.new_empty(len(x), gate.shape[2]) for _ in range(2))  # (R, F)
        for x_e, g_e, u_e, gate_e, up_e in zip(*_segments(sizes, x, g, u), gate, up):
            torch.mm(x_e, gate_e, out=g_e)
            torch.mm(x_e, up_e, out=u_e)
        return g, u

    @staticmethod
    @once_differentiable
    def backward(ctx, dg: Tensor, du: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        x, gate, up = ctx.saved_tensors
        dx, dgate, dup = (torch.empty_like(t) for t in (x, gate, up))
        rows = _segments(ctx.sizes, x, dg, du, dx)
        for x_e, dg_e, du_e, dx_e, gate_e, up_e, dgate_e, dup_e in zip(*rows, gate, up, dgate, dup):
            torch.mm(x_e.mT, dg_e, out=dgate_e)  # without rows: zeros
            torch.mm(x_e.mT, du_e, out=dup_e)
            torch.mm(dg_e, gate_e.mT, out=dx_e)
            torch.addmm(dx_e, du_e, up_e.mT, out=dx_e)
        return dx, dgate, dup, None


class _Down(torch.autograd.Function):
    @staticmethod
    def forward(ctx, g: Tensor, u: Tensor, down: Tensor, sizes: list[int]) -> Tensor:
        ctx.save_for_backward(g, u, down)
        ctx.sizes = sizes
        y = g.new_empty(len(g), down.shape[2])  # (R, D)
        for g_e, u_e, y_e, down_e in zip(*_segments(sizes, g, u, y), down):
            torch.mm(F.silu(g_e).mul_(u_e), down_e, out=y_e)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx, dy: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        g, u, down = ctx.saved_tensors
        dg, du, ddown = (torch.empty_like(t) for t in (g, u, down))
        rows = _segments(ctx.sizes, dy, g, u, dg, du)
        for dy_e, g_e, u_e, dg_e, du_e, down_e, ddown_e in zip(*rows, down, ddown):
            a = F.silu(g_e)  # (r, F)
            torch.mm((a * u_e).mT, dy_e, out=ddown_e)
            dh = dy_e @ down_e.mT  # (r, F)
            torch.mul(a, dh, out=du_e)
            dg_e.copy_(torch.ops.aten.silu_backward(dh.mul_(u_e), g_e))
        return dg, du, ddown, None


def _segments(sizes: list[int], *tensors: Tensor) -> list[tuple[Tensor, ...]]:
    """Per expert, views of its rows in each tensor."""
    return [tensor.split(sizes) for tensor in tensors]


def has_kernel(*operands: Tensor) -> bool:
    """True if torch's grouped matmul applies: a GPU, at least one row, rows of 16-byte multiples.

    It also runs on CPUs, no faster than the loop, but never in float64.
    """

    def fits(t: Tensor) -> bool:
        strides = (n * t.element_size() for n in t.stride() if n > 1)
        return t.is_cuda and t.numel() > 0 and all(n % 16 == 0 for n in strides)

    return all(map(fits, operands)) and kernel_runs(operands[0].dtype, operands[0].device.type)


@lru_cache
def kernel_runs(dtype: torch.dtype, device: str) -> bool:
    """Tried once per dtype and device: support also depends on torch's version."""
    try:
        x = torch.zeros(16, 16, dtype=dtype, device=device)
        torch._grouped_mm(x, x.unsqueeze(0), offs=torch.tensor([16], device=device).int())
    except (AttributeError, RuntimeError):
        return False
    return True


# ---- experts as separate linear layers, which can be quantized and adapted ----

PARTS = ("gate", "up", "down")


class ExpertsApart(nn.ModuleList):
    """A module with gate, up and down for each expert, in order: experts.gate (E, D, F) becomes
    experts.0.gate, experts.1.gate, …: nn.Linear, weight (F, D).

    It computes the same as `Experts`, with E small matmuls per matrix, forward and backward, and
    no grouped kernel on a GPU. An expert without rows is not called.
    """

    def forward(self, rows: Tensor, counts: Tensor) -> Tensor:
        """rows (R, D), sorted by expert, counts (E,) summing to R -> (R, D)."""
        parts = zip(self, rows.split(counts.tolist()))
        called = [(expert, x) for expert, x in parts if len(x)]
        hidden = [swiglu(expert["gate"](x), expert["up"](x)) for expert, x in called]  # (r, F) each
        answers = [expert["down"](h) for (expert, _), h in zip(called, hidden)]
        return torch.cat(answers) if answers else rows


def take_apart(model: nn.Module) -> nn.Module:
    """Splits all mixtures of a model in place; outputs stay equal up to summation order."""
    for module in model.modules():
        if isinstance(getattr(module, "experts", None), Experts):
            module.experts = apart(module.experts)
    return model


def apart(experts: Experts) -> ExpertsApart:
    found = ExpertsApart()
    for matrices in zip(*(experts.get_parameter(part) for part in PARTS)):
        found.append(nn.ModuleDict({p: _linear(w) for p, w in zip(PARTS, matrices)}))
    return found


@torch.no_grad()
def put_together(model: nn.Module) -> nn.Module:
    """Undoes `take_apart` in place; the experts' layers must be plain nn.Linear."""
    for module in model.modules():
        if isinstance(getattr(module, "experts", None), ExpertsApart):
            matrices = {p: [expert[p].weight.t() for expert in module.experts] for p in PARTS}
            with torch.device("meta"):
                experts = Experts(len(module.experts), *matrices["gate"][0].shape)
            for part, each in matrices.items():
                setattr(experts, part, nn.Parameter(torch.stack(each)))
            module.experts = experts
    return model


def _linear(weight: Tensor) -> nn.Linear:
    """A linear layer from weight (I, O), as stored in `Experts`."""
    ins, outs = weight.shape
    linear = nn.Linear(ins, outs, bias=False, device="meta")
    linear.weight = nn.Parameter(weight.detach().t().contiguous(), weight.requires_grad)
    return linear
