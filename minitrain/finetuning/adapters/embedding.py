"""LoRA of an embedding: a table of V rows of R numbers, and one matrix that reads them.

    y = E[t] + s·A[:, t]ᵀ Bᵀ        A (R, V) zero, B (D, R) random: the other way round, as in PEFT

Looking up a column of A costs nothing, and a token that the new text never has keeps its vector.
Paper: Hu et al., arXiv 2106.09685. Shapes: V vocabulary  D width  R rank.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from minitrain.finetuning.layer import Adapter, place_of, with_weight


class LoRAEmbedding(Adapter):
    """Over an nn.Embedding."""

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
        place = place_of(base)
        self.scaling = scaling
        drawn = torch.randn(base.embedding_dim, rank, generator=generator, dtype=place["dtype"])
        self.lora_embedding_A = nn.Parameter(torch.zeros(rank, base.num_embeddings, **place))
        self.lora_embedding_B = nn.Parameter(drawn.to(**place))  # (D, R)

    @property
    def rank(self) -> int:
        return len(self.lora_embedding_A)

    def forward(self, base: nn.Embedding, tokens: Tensor) -> Tensor:
        """tokens (B, T) -> (B, T, D)."""
        y = base(tokens)
        rows = F.embedding(tokens, self.lora_embedding_A.T)  # (B, T, R)
        added = F.linear(rows, self.lora_embedding_B) * self.scaling
        return y + (added * getattr(base, "embed_scale", 1.0)).to(y.dtype)  # Gemma's scale the sum

    def merged(self, base: nn.Embedding) -> nn.Module:
        delta = self.scaling * (self.lora_embedding_B @ self.lora_embedding_A).T  # (V, D)
        weight = (base.weight + delta).detach().to(base.weight.dtype)
        return with_weight(base, weight)
