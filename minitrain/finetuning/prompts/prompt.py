"""Prompt tuning: n learned vectors before the text's embeddings, as if words had been typed.

    x = [P; embed(tokens)]     n + T tokens through all layers, and the logits of the T

The first n outputs are cut off before the head, so that logits and targets are as without them.
They begin as the vectors of tokens drawn from the vocabulary, from which they learn sooner than
from noise (section 3.2 of the paper). Trained: n·D numbers, and n tokens more are computed for
every text. Paper: Lester et al., arXiv 2104.08691. Shapes: B batch  T tokens  D width.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from minitrain.finetuning.layer import Adapted, Adapter, place_of
from minitrain.finetuning.prompts.looking import Shifted
from minitrain.model.transformer import Transformer


class Prompt(Adapter):
    """Over the embedding."""

    peft_names = {"vectors": "prompt_embeddings"}  # noqa: RUF012

    def __init__(
        self, base: nn.Embedding, count: int, generator: torch.Generator | None = None
    ) -> None:
        super().__init__()
        drawn = torch.randint(len(base.weight), (count,), generator=generator)
        rows = base.weight.detach()[drawn.to(base.weight.device)]
        self.vectors = nn.Parameter(rows.to(**place_of(base)))  # (n, D)

    def forward(self, base: nn.Embedding, tokens: Tensor) -> Tensor:
        """tokens (B, T) -> (B, n+T, D)."""
        x = base(tokens)
        prompt = self.vectors.to(x.dtype).expand(len(x), -1, -1)  # (B, n, D)
        return torch.cat((prompt, x), dim=1)


class Cut(Adapter):
    """Over the last norm: the learned tokens' outputs are nobody's."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.count = count

    def forward(self, base: nn.Module, x: Tensor) -> Tensor:
        """x (B, n+T, D) -> (B, T, D)."""
        return base(x[:, self.count :])


def add_prompt(model: Transformer, count: int, generator: torch.Generator | None = None) -> None:
    embed = Adapted(model.embed, Prompt(model.embed, count, generator))
    model.embed, model.norm = embed, Adapted(model.norm, Cut(count))
    model.look_around = Shifted(model.look_around, count, in_stream=True, switch=embed)
