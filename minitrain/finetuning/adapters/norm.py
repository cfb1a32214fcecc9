"""Norm tuning: copies of the norms learn, and stand in for them.

Trained: D numbers a norm, (2L + 1)·D in all. Paper: Zhao et al., arXiv 2312.11420.
"""

from __future__ import annotations

import copy

from torch import Tensor, nn

from minitrain.finetuning.layer import Adapter, place_of


class TunedNorm(Adapter):
    """Over any norm: whatever takes x alone and has parameters."""

    def __init__(self, base: nn.Module) -> None:
        super().__init__()
        dtype = place_of(base)["dtype"]
        self.tuned = copy.deepcopy(base).to(dtype).requires_grad_(True)
        self.peft_names = {
            f"tuned.{name}": f"ln_tuning_layers.{name}" for name, _ in base.named_parameters()
        }

    def forward(self, base: nn.Module, x: Tensor) -> Tensor:
        """x (..., D) -> (..., D)."""
        return self.tuned(x).to(x.dtype)

    def merged(self, base: nn.Module) -> nn.Module:
        dtype = next(base.parameters()).dtype
        return copy.deepcopy(self.tuned).to(dtype).requires_grad_(False)
