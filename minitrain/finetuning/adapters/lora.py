"""LoRA: what a layer learns is a matrix of low rank beside it, s·B·A.

    y = W x + s·B (A x)        A (R, I) drawn at random, B (O, R) zero: at first nothing is added

Scaling s is α/R; rsLoRA takes α/√R, under which the size of what is learned does not shrink as R
grows. Trained: R(I + O) of I·O numbers. At the first step only B moves, since dL/dA = s·Bᵀ(…) = 0;
were A zero too, neither ever would. Merged, W + s·B·A costs nothing more than W.
Cost a token: 2R(I + O) FLOPs forward; backward computes no dW. Papers: Hu et al., arXiv 2106.09685;
Kalajdzievski, 2312.03732 (rsLoRA). Shapes: I, O features in and out  R rank.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from minitrain.finetuning.layer import (
    Adapter,
    bias_of,
    dense_like,
    dense_weight,
    features,
    place_of,
)


class LoRA(Adapter):
    """Over a linear layer. Dropout is on the way to A alone, never on what the layer itself does.

    x is taken to the adapter's dtype (at least float32), and what it adds to y's.
    """

    peft_names = {"lora_A": "lora_A.weight", "lora_B": "lora_B.weight"}  # noqa: RUF012

    def __init__(
        self,
        base: nn.Module,
        rank: int,
        scaling: float,
        dropout: float = 0.0,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        place, (outs, ins) = place_of(base), features(base)
        self.scaling, self.dropout = scaling, dropout
        drawn = nn.init.kaiming_uniform_(
            torch.empty(rank, ins, dtype=place["dtype"]),
            a=math.sqrt(5),
            generator=generator,
        )
        self.lora_A = nn.Parameter(drawn.to(**place))  # (R, I)
        self.lora_B = nn.Parameter(torch.zeros(outs, rank, **place))  # (O, R)

    @property
    def rank(self) -> int:
        return len(self.lora_A)

    def forward(self, base: nn.Module, x: Tensor, *rest: Any, **named: Any) -> Tensor:
        """x (..., I) -> (..., O); `rest` is what else the base layer reads."""
        y = base(x, *rest, **named)
        return y + self.low_rank(x).to(y.dtype)

    def low_rank(self, x: Tensor) -> Tensor:
        """s·B(A x): (..., I) -> (..., O)."""
        x = F.dropout(x, self.dropout, self.training).to(self.lora_A.dtype)
        inside = F.linear(x, self.lora_A) * self.scaling  # (..., R), where scaling costs least
        return F.linear(inside, self.lora_B)

    def factors(self) -> tuple[Tensor, Tensor]:
        """A (R, I) and B (O, R) whose product, times the scaling, is all that is added."""
        return self.lora_A.detach(), self.lora_B.detach()

    def delta(self) -> Tensor:
        """s·B·A, (O, I)."""
        a, b = self.factors()
        return self.scaling * (b @ a)

    def merged(self, base: nn.Module) -> nn.Module:
        return merged_linear(base, self.delta())


def merged_linear(base: nn.Module, delta: Tensor) -> nn.Module:
    """A frozen layer that computes W + delta, and base's bias; delta (O, I), base as it was.

    Summed in the wider of both dtypes, and rounded to W's once.
    """
    weight = dense_weight(base)
    return dense_like(base, (weight + delta).to(weight.dtype), bias_of(base))
