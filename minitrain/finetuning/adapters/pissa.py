"""PiSSA: LoRA initialized with the layer's largest singular values, which learn fastest.

    W = U S Vᵀ      A0 = √(S/s) Vᵀ, B0 = U √(S/s) of the R largest      s·B0·A0 ≈ W
    y = (W - s·B0·A0) x + s·B (A x),       A and B begin as A0 and B0, so that y = W x

The paper writes W - s·B0·A0 into the layer. Here the layer stays as it is and A0 and B0 are kept
beside it: the same numbers, and the base model stays intact, quantized layers too; it costs twice
LoRA's FLOPs. The learned update B·A - B0·A0 is a LoRA of rank 2R, and is saved as one.
Paper: Meng et al., arXiv 2404.02948. Shapes: I, O features in and out  R rank.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from minitrain.errors import InputError
from minitrain.finetuning.adapters.lora import LoRA
from minitrain.finetuning.layer import dense_weight, features


class PiSSA(LoRA):
    peft_names = {}  # noqa: RUF012  # saved as a LoRA of rank 2R: `factors`

    def __init__(self, base: nn.Module, *settings: Any, **more: Any) -> None:
        super().__init__(base, *settings, **more)
        outs, ins = features(base)
        if self.rank > min(ins, outs):
            raise InputError(
                f"rank {self.rank} is more than a layer of {ins} to {outs} features has singular "
                f"values: use {min(ins, outs)} or less"
            )
        a, b = principal(dense_weight(base).to(self.lora_A.dtype), self.rank, self.scaling)
        self.register_buffer("first_A", a)  # (R, I)
        self.register_buffer("first_B", b)  # (O, R)
        with torch.no_grad():
            self.lora_A.copy_(a)
            self.lora_B.copy_(b)

    def low_rank(self, x: Tensor) -> Tensor:
        """s·(B A - B0 A0) x; the same dropout mask for both products."""
        x = F.dropout(x, self.dropout, self.training).to(self.lora_A.dtype)
        moved = F.linear(F.linear(x, self.lora_A), self.lora_B)
        return (moved - F.linear(F.linear(x, self.first_A), self.first_B)) * self.scaling

    def factors(self) -> tuple[Tensor, Tensor]:
        """A (2R, I) and B (O, 2R)."""
        a = torch.cat((self.lora_A.detach(), self.first_A))
        return a, torch.cat((self.lora_B.detach(), -self.first_B), dim=1)


def principal(weight: Tensor, rank: int, scaling: float) -> tuple[Tensor, Tensor]:
    """weight (O, I) -> A (R, I), B (O, R) with s·B·A its best approximation of that rank."""
    u, values, vt = torch.linalg.svd(weight, full_matrices=False)
    root = (values[:rank] / scaling).sqrt()  # (R,)
    return root[:, None] * vt[:rank], u[:, :rank] * root
