"""(IA)³ and BitFit: one learned number for every feature of a linear layer, to multiply or to add.

    (IA)³    k, v    y = l ⊙ (W x)       l (O,)     }  l begins as 1
             down    y = W (l ⊙ x)       l (I,)     }
    BitFit           y = W x + b + δ     δ (O,) begins as 0: the change of the bias

(IA)³ trains 2·K·C + F numbers a layer, the fewest of all mergeable methods here: merging scales
rows or columns of W. BitFit trains O; a layer without a bias, as in Llama, gets one.
Papers: Liu et al., arXiv 2205.05638; Ben Zaken et al., 2106.10199.
Shapes: I, O features in and out.
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
    """`of_input`: scales the layer's input features instead of its outputs."""

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


class BitFit(Adapter):
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
