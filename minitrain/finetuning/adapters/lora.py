"""LoRA: a layer learns a low-rank matrix s·B·A beside its frozen weight.

    y = W x + s·B (A x)        A (R, I) drawn at random, B (O, R) zero: at first nothing is added

Scaling s is α/R; rsLoRA uses α/√R, under which the update does not shrink as R grows. Trained: R(I
+ O) of I·O numbers. At the first step only B moves, since dL/dA = s·Bᵀ(…) = 0; were A zero too,
neither ever would. Merged, W + s·B·A costs no more than W.
Cost a token: 2R(I + O) FLOPs forward; backward computes no dW. Papers: Hu et al., arXiv 2106.09685;
Kalajdzievski, 2312.03732 (rsLoRA).
Shapes: I, O features in and out.

The same over an embedding (`LoRAEmbedding`) and over a mixture's experts (`LoRAExperts`).
"""

from __future__ import annotations

import copy
import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from minitrain.errors import InputError
from minitrain.finetuning.layer import (
    Adapter,
    bias_of,
    dense_like,
    dense_weight,
    features,
    place_of,
    with_weight,
)
from minitrain.model.experts.grouped import Experts


class LoRA(Adapter):
    """Over a linear layer. Dropout applies only before A, never before the layer itself.

    x is cast to the adapter's dtype (at least float32), and the adapter's output to y's.
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
        """x (..., I) -> (..., O); `rest` holds the base layer's other inputs."""
        y = base(x, *rest, **named)
        return y + self.low_rank(x).to(y.dtype)

    def low_rank(self, x: Tensor) -> Tensor:
        """s·B(A x): (..., I) -> (..., O)."""
        x = F.dropout(x, self.dropout, self.training).to(self.lora_A.dtype)
        inside = F.linear(x, self.lora_A) * self.scaling  # (..., R), where scaling costs least
        return F.linear(inside, self.lora_B)

    def factors(self) -> tuple[Tensor, Tensor]:
        """A (R, I) and B (O, R) whose product times the scaling is the whole update."""
        return self.lora_A.detach(), self.lora_B.detach()

    def delta(self) -> Tensor:
        """s·B·A, (O, I)."""
        a, b = self.factors()
        return self.scaling * (b @ a)

    def merged(self, base: nn.Module) -> nn.Module:
        return merged_linear(base, self.delta())


def merged_linear(base: nn.Module, delta: Tensor) -> nn.Module:
    """A frozen layer with weight W + delta and base's bias; delta (O, I), base unchanged.

    Summed in the wider of both dtypes, and rounded once to W's.
    """
    weight = dense_weight(base)
    return dense_like(base, (weight + delta).to(weight.dtype), bias_of(base))


class LoRAEmbedding(Adapter):
    """Over an nn.Embedding: a table of V rows of R numbers, and one up-projection.

        y = E[t] + s·A[:, t]ᵀ Bᵀ      A (R, V) zero, B (D, R) random: as in PEFT, reversed

    Looking up a column of A costs nothing, and a token absent from the new text keeps its vector.
    Shapes: V vocabulary  D width  R rank.
    """

    peft_names = {  # noqa: RUF012
        "lora_embedding_A": "lora_embedding_A",
        "lora_embedding_B": "lora_embedding_B",
    }

    def __init__(
        self,
        base: nn.Embedding,
        rank: int,
        scaling: float,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        place, self.scaling = place_of(base), scaling
        drawn = torch.randn(base.embedding_dim, rank, generator=generator, dtype=place["dtype"])
        self.lora_embedding_A = nn.Parameter(torch.zeros(rank, base.num_embeddings, **place))
        self.lora_embedding_B = nn.Parameter(drawn.to(**place))  # (D, R)

    def forward(self, base: nn.Embedding, tokens: Tensor) -> Tensor:
        """tokens (B, T) -> (B, T, D)."""
        y = base(tokens)
        rows = F.embedding(tokens, self.lora_embedding_A.T)  # (B, T, R)
        added = F.linear(rows, self.lora_embedding_B) * self.scaling
        return y + (added * getattr(base, "embed_scale", 1.0)).to(y.dtype)  # Gemma's scale the sum

    def merged(self, base: nn.Embedding) -> nn.Module:
        if base.max_norm is not None:
            raise InputError("an Embedding with max_norm would shorten the sum: do not merge it")
        delta = self.scaling * (self.lora_embedding_B @ self.lora_embedding_A).T  # (V, D)
        weight = (base.weight + delta).detach().to(base.weight.dtype)
        return with_weight(base, weight)


class LoRAExperts(Adapter):
    """Over an `Experts`: for each expert an A and a B beside each of its three matrices.

        W'_e = W_e + s·(B_e A_e)ᵀ      W (E, I, O), A (E, R, I), B (E, O, R) zero

    An expert has a nonlinearity between its matrices, so that no single adapter fits beside all
    three: the experts' own code runs on the sums W', as a batched matmul of all E. Cost a step:
    2·R·I·O FLOPs an expert and matrix and E·I·O numbers for W', and as many for its gradient,
    whatever the number of tokens. W' is rounded to the experts' dtype, such as bfloat16. Trained:
    E·R·(I + O) numbers a matrix; an expert that no token chooses does not learn. It follows PEFT's
    `target_parameters`, but PEFT's models hold gate and up in one tensor, so our files load in no
    other library. Shapes: E experts  I, O features in and out  R rank.
    """

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
