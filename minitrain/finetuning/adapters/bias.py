"""BitFit: the biases learn, and nothing else.

    y = W x + b + δ        δ (O,) begins as zero

What is trained is the change of the bias. So the layer stays as it is, and one that has no bias, as
in Llama, gets its first. Trained: O numbers a layer. Paper: Ben Zaken et al., arXiv 2106.10199.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from minitrain.finetuning.layer import (
    Adapter,
    bias_of,
    dense_like,
    dense_weight,
    features,
    place_of,
)


class BitFit(Adapter):
    """Over a linear layer."""

    peft_names = {"delta": "bitfit_delta"}  # noqa: RUF012  # PEFT has no such method

    def __init__(self, base: nn.Module) -> None:
        super().__init__()
        self.delta = nn.Parameter(torch.zeros(features(base)[0], **place_of(base)))  # (O,)

    def forward(self, base: nn.Module, x: Tensor) -> Tensor:
        """x (..., I) -> (..., O)."""
        y = base(x)
        return y + self.delta.to(y.dtype)

    def merged(self, base: nn.Module) -> nn.Module:
        bias, weight = bias_of(base), dense_weight(base)
        total = self.delta.detach() if bias is None else self.delta.detach() + bias
        return dense_like(base, weight.clone(), total.to(weight.dtype))
