"""Experts taken apart: each of their matrices a linear layer, which can be quantized and adapted.

    experts.gate (E, D, F)  ->  experts.0.gate, experts.1.gate, …: nn.Linear, weight (F, D)

They compute what `Experts` does (grouped.py), which is made to be trained: E small matmuls a matrix
here, forward and backward, and no grouped one on a GPU. An expert that no row goes to is not
called. Shapes: R rows  E experts  D width  F width in an expert.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from minitrain.model.experts.grouped import Experts
from minitrain.model.experts.moe import MoE
from minitrain.model.mlp import swiglu

PARTS = ("gate", "up", "down")


class ExpertsApart(nn.ModuleList):
    """A module with gate, up and down for each expert, in their order."""

    def forward(self, rows: Tensor, counts: Tensor) -> Tensor:
        """rows (R, D), sorted by expert, counts (E,) of sum R -> (R, D)."""
        parts = zip(self, rows.split(counts.tolist()))
        called = [(expert, x) for expert, x in parts if len(x)]
        hidden = [swiglu(expert["gate"](x), expert["up"](x)) for expert, x in called]  # (r, F) each
        answers = [expert["down"](h) for (expert, _), h in zip(called, hidden)]
        return torch.cat(answers) if answers else rows


def take_apart(model: nn.Module) -> nn.Module:
    """In place, for all mixtures of a model; the function stays, to the order of its sums."""
    for module in model.modules():
        if isinstance(module, MoE) and isinstance(module.experts, Experts):
            module.experts = apart(module.experts)
    return model


def apart(experts: Experts) -> ExpertsApart:
    found = ExpertsApart()
    for matrices in zip(*(experts.get_parameter(part) for part in PARTS)):
        found.append(nn.ModuleDict({p: _linear(w) for p, w in zip(PARTS, matrices)}))
    return found


@torch.no_grad()
def put_together(model: nn.Module) -> nn.Module:
    """In place, the other way round; the experts' matrices must be plain ones."""
    for module in model.modules():
        if isinstance(module, MoE) and isinstance(module.experts, ExpertsApart):
            matrices = {p: [expert[p].weight.t() for expert in module.experts] for p in PARTS}
            with torch.device("meta"):
                experts = Experts(len(module.experts), *matrices["gate"][0].shape)
            for part, each in matrices.items():
                setattr(experts, part, nn.Parameter(torch.stack(each)))
            module.experts = experts
    return model


def _linear(weight: Tensor) -> nn.Linear:
    """weight (I, O), as experts hold it."""
    ins, outs = weight.shape
    linear = nn.Linear(ins, outs, bias=False, device="meta")
    linear.weight = nn.Parameter(weight.detach().t().contiguous(), weight.requires_grad)
    return linear
