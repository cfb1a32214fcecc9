"""(IA)³: a learned factor for every feature of keys, values, and what `down` reads; nothing else.

    k, v    y = l ⊙ (W x)       l (O,)         }  l begins as 1
    down    y = W (l ⊙ x)       l (I,)         }

Trained: 2·K·C + F numbers a layer, the fewest of all methods here that are merged: a row or a
column of W is multiplied. Paper: Liu et al., arXiv 2205.05638. Shapes: I, O features in and out.
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


class IA3(Adapter):
    """`of_input`: the features that the layer reads are scaled, not those that it makes."""

    peft_names = {"ia3_l": "ia3_l"}  # noqa: RUF012

    def __init__(self, base: nn.Module, of_input: bool) -> None:
        super().__init__()
        self.of_input = of_input
        outs, ins = features(base)
        shape = (1, ins) if of_input else (outs, 1)
        self.ia3_l = nn.Parameter(torch.ones(shape, **place_of(base)))  # as it multiplies (O, I)

    def forward(self, base: nn.Module, x: Tensor) -> Tensor:
        """x (..., I) -> (..., O)."""
        factors = self.ia3_l.flatten()
        if self.of_input:
            return base((x * factors).to(x.dtype))
        y = base(x)
        return (y * factors).to(y.dtype)

    def merged(self, base: nn.Module) -> nn.Module:
        weight, bias = dense_weight(base), bias_of(base)
        factors = self.ia3_l.detach()
        if bias is not None and not self.of_input:
            bias = (bias * factors.flatten()).to(bias.dtype)
        return dense_like(base, (weight * factors).to(weight.dtype), bias)
