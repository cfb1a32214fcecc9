"""A model, rows and a loader small enough that a step takes a millisecond."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from minitrain.optimizers.adamw import adamw
from minitrain.training.loss import IGNORED
from minitrain.training.state import TrainState

VOCABULARY = 11


class Toy(nn.Module):
    """Embedding, dropout (so that random numbers matter), head; tied if asked."""

    def __init__(self, seed: int = 0, tied: bool = False, width: int = 8, dropout: float = 0.0):
        super().__init__()
        torch.manual_seed(seed)
        self.embed = nn.Embedding(VOCABULARY, width)
        self.norm = nn.LayerNorm(width)
        self.dropout = nn.Dropout(dropout)
        self.head = nn.Linear(width, VOCABULARY, bias=False)
        if tied:
            self.head.weight = self.embed.weight

    def forward(self, tokens: Tensor, documents=None, positions=None) -> Tensor:
        return self.head(self.dropout(self.norm(self.embed(tokens))))


@dataclass(frozen=True)
class Batch:
    tokens: Tensor  # (B, T)
    targets: Tensor  # (B, T)
    documents: Tensor | None = None
    positions: Tensor | None = None

    def to(self, device) -> Batch:
        return replace(self, tokens=self.tokens.to(device), targets=self.targets.to(device))


def random_batch(rows: int, length: int = 6, valid: float = 0.7, seed: int = 0) -> Batch:
    """Rows with unequal numbers of counted targets, at least one in all."""
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(VOCABULARY, (rows, length), generator=generator)
    targets = torch.randint(VOCABULARY, (rows, length), generator=generator)
    left_out = torch.rand(rows, length, generator=generator) > valid
    left_out[0, 0] = False
    return Batch(tokens, targets.masked_fill(left_out, IGNORED))


class ToyLoader:
    """Endless batches whose content is a function of their number, which is its whole state."""

    def __init__(self, rows: int = 4, seed: int = 0):
        self.rows, self.seed, self.place = rows, seed, 0

    def __iter__(self) -> Iterator[Batch]:
        while True:
            self.place += 1
            yield random_batch(self.rows, seed=1000 * self.seed + self.place)

    def state_dict(self) -> dict:
        return {"place": self.place}

    def load_state_dict(self, state: dict) -> None:
        self.place = state["place"]


def toy_state(seed: int = 0, **options) -> TrainState:
    model = Toy(seed, **options)
    return TrainState(model, adamw(model, lr=0.01), ToyLoader())
