"""LoRA of a mixture's experts: for each of them a matrix of low rank beside each of its three.

    W'_e = W_e + s·(B_e A_e)ᵀ      W (E, I, O), A (E, R, I), B (E, O, R) zero: the experts' own code
                                   is run on the sums, a batched matmul of all E

Between an expert's matrices stands a nonlinearity, so that no adapter can stand beside the three of
them; what it would spare is the sum. Cost a step: 2·R·I·O FLOPs an expert and matrix and E·I·O
numbers for W', and as many for its gradient, whatever the tokens. In bfloat16 W' is rounded to what
the experts compute in. Trained: E·R·(I + O) numbers a matrix; an expert that no token chooses does
not learn. As PEFT's `target_parameters` does it; its files are of models that hold gate and up in
one tensor, so that these are read and written here alone.
Paper: Hu et al., arXiv 2106.09685. Shapes: E experts  I, O features in and out  R rank.
"""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn

from minitrain.finetuning.layer import Adapter, place_of
from minitrain.model.experts.grouped import Experts


class LoRAExperts(Adapter):
    """Over an `Experts`: gate, up and down, each with an A and a B."""

    def __init__(
        self, base: Experts, rank: int, scaling: float, generator: torch.Generator | None = None
    ) -> None:
        super().__init__()
        place, self.scaling = place_of(base), scaling
        self.parts = [name for name, _ in base.named_parameters()]
        for part in self.parts:
            count, ins, outs = base.get_parameter(part).shape
            drawn = torch.empty(count, rank, ins, dtype=place["dtype"])
            drawn.uniform_(-(ins**-0.5), ins**-0.5, generator=generator)  # as a linear layer's A
            zeros = torch.zeros(count, outs, rank, **place)
            self.register_parameter(f"{part}_lora_A", nn.Parameter(drawn.to(**place)))
            self.register_parameter(f"{part}_lora_B", nn.Parameter(zeros))
        self.peft_names = {name: name for name, _ in self.named_parameters()}

    def forward(self, base: Experts, rows: Tensor, counts: Tensor) -> Tensor:
        """rows (R, D), sorted by expert, counts (E,) -> (R, D)."""
        return torch.func.functional_call(base, self.sums(base), (rows, counts))

    def sums(self, base: Experts) -> dict[str, Tensor]:
        """W' of each part, (E, I, O), in the adapter's dtype."""
        found = {}
        for part in self.parts:
            a, b = (self.get_parameter(f"{part}_lora_{name}") for name in "AB")
            weight = base.get_parameter(part).to(a.dtype)
            found[part] = torch.baddbmm(weight, a.mT, b.mT, alpha=self.scaling)
        return found

    def merged(self, base: Experts) -> nn.Module:
        experts = copy.deepcopy(base).requires_grad_(False)
        for part, weight in self.sums(base).items():
            experts.get_parameter(part).copy_(weight.detach())
        return experts
