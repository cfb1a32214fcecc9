"""Norm tuning: trains copies of the norms in their place; also whole modules that are trained
beside another adapter, such as a new head (`modules_to_save`).

Trained: D numbers a norm, (2L + 1)·D in all. Paper: Zhao et al., arXiv 2312.11420.
"""

from __future__ import annotations

import copy
from typing import Any

from torch import Tensor, nn

from minitrain.finetuning.layer import Adapter, place_of


class TunedNorm(Adapter):
    """Over any norm: any module with parameters whose only input is x."""

    peft_prefix = "ln_tuning_layers."

    def __init__(self, base: nn.Module) -> None:
        super().__init__()
        dtype = place_of(base)["dtype"]
        self.tuned = copy.deepcopy(base).to(dtype).requires_grad_(True)
        self.peft_names = {f"tuned.{name}": self.peft_prefix + name for name in base.state_dict()}

    def forward(self, base: nn.Module, x: Tensor) -> Tensor:
        """x (..., D) -> (..., D)."""
        return self.tuned(x).to(x.dtype)

    def merged(self, base: nn.Module) -> nn.Module:
        dtype = next(base.parameters()).dtype
        return copy.deepcopy(self.tuned).to(dtype).requires_grad_(False)


class TrainedModule(TunedNorm):
    """Over any module: a head, an embedding; in PEFT's files it has the module's own names."""

    peft_prefix = ""

    def forward(self, base: nn.Module, x: Tensor, *rest: Any, **named: Any) -> Any:
        dtype = next(base.parameters()).dtype
        if x.is_floating_point():
            x = x.to(next(self.tuned.parameters()).dtype)
        y = self.tuned(x, *rest, **named)
        return y.to(dtype) if isinstance(y, Tensor) else y
