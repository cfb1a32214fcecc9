"""DoRA: learns each row's magnitude separately from its direction, which LoRA updates.

    V = W + s·B·A      y = m·V x / ‖V‖     m (O,) begins as the rows' lengths ‖W‖: y = W x at first

‖V‖ is computed anew each step, and backward treats it as a constant (section 4.3), which avoids the
gradient of a whole matrix. y is computed from W x and B A x, so W itself is only read to measure
its rows. Cost: LoRA's, and 2·R·I·O FLOPs and I·O numbers a step for V, whatever the batch. Paper:
Liu et al., arXiv 2402.09353. Shapes: I, O features in and out  R rank.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from minitrain.finetuning.adapters.lora import LoRA
from minitrain.finetuning.layer import bias_of, dense_like, dense_weight


class DoRA(LoRA):
    peft_names = {**LoRA.peft_names, "magnitude": "lora_magnitude_vector"}  # noqa: RUF012

    def __init__(self, base: nn.Module, *settings: Any, **more: Any) -> None:
        super().__init__(base, *settings, **more)
        self.magnitude = nn.Parameter(self.row_lengths(base))  # (O,)

    @torch.no_grad()
    def row_lengths(self, base: nn.Module) -> Tensor:
        """‖W + s·B·A‖ of each row, (O,)."""
        return torch.linalg.vector_norm(dense_weight(base) + self.delta(), dim=1)

    def forward(self, base: nn.Module, x: Tensor) -> Tensor:
        """x (..., I) -> (..., O)."""
        y, bias = base(x), bias_of(base)
        factor = self.magnitude / self.row_lengths(base)  # (O,)
        straight = y if bias is None else y - bias
        return y + ((factor - 1) * straight + factor * self.low_rank(x)).to(y.dtype)

    def merged(self, base: nn.Module) -> nn.Module:
        weight = dense_weight(base)
        factor = (self.magnitude / self.row_lengths(base)).detach()  # (O,)
        turned = factor[:, None] * (weight + self.delta())
        return dense_like(base, turned.to(weight.dtype), bias_of(base))
