"""EAGLE: one small layer that continues from the target's last hidden vector, token by token.

    target    h(Once)   h(upon)   h(a)              exact hidden vectors of the tokens read so far
                 ╲         ╲        ╲
    tokens       upon      a        time            each paired with the token drawn from it
    layer        ĥ(upon)   ĥ(a)     ĥ(time)  →  there  →  ĥ(there)  →  was  …
                                    └ predicted, and used in place of the target's

The hidden vector holds all that the target knows of the text, so one layer is enough to predict the
next; and the token beside it, which Medusa's heads cannot see, tells which of the likely ones was
drawn. Predicted vectors are never kept: at the request's next call, exact ones replace them.

    x = J [embed(token), h];  ĥ = block(x);  logits = ĥ U^T, U initialized to the target's rows

Cost per drafted token, sequentially: a layer's weights and V'·D numbers. Papers: Li et al., arXiv
2401.15077; shortlist: 2502.14856.
Shapes: B texts  T tokens  D width  V vocabulary  V' shortlist.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import replace
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from minitrain.inference.cache.dense import DenseCache, DenseReader
from minitrain.inference.forward import through
from minitrain.inference.speculation.draft_model import InRows, New, filled
from minitrain.inference.speculation.lessons import Lessons
from minitrain.inference.speculation.proposer import Asked
from minitrain.model.rope import rotation
from minitrain.model.transformer import Block, Transformer, initialise

NOISE = 0.1  # of a hidden vector's spread, in training: predicted ones are inexact too


class EagleLayer(nn.Module):
    def __init__(self, target: Transformer, shortlist: Tensor, seed: int = 0) -> None:
        """`shortlist` (V',): the token ids that can be drafted."""
        super().__init__()
        self.config = replace(target.config, layers=1, experts=0, window=None)
        width, rows = self.config.hidden_size, target.head.weight.detach()[shortlist]
        self.join = nn.Linear(2 * width, width, bias=False)
        self.block = Block(self.config)
        initialise(self, torch.Generator().manual_seed(seed))
        self.outer = nn.Parameter(rows.clone())  # (V', D)
        self.register_buffer("shortlist", shortlist)
        self.register_buffer("own", rows.clone())
        self.to(rows)
        self.embedding = [target.embed]  # in a list, since it is the target's and not trained

    def forward(self, tokens: Tensor, hidden: Tensor, reader: DenseReader | None = None) -> Tensor:
        """tokens (B, T), each drawn from the hidden (B, T, D) beside it -> ĥ (B, T, D)."""
        x = self.join(torch.cat((self.embedding[0](tokens), hidden), dim=-1))
        if reader is None:  # whole texts, in training
            positions = torch.arange(x.shape[1], device=x.device)
            return self.block(x, rotation(self.config, positions, x.dtype))
        turns = rotation(self.config, reader.positions, x.dtype)
        attention, attend = self.block.attention, partial(reader.attend, 0)
        x = x + through(attention, self.block.attention_norm(x), turns, attend)
        return x + self.block.mlp(self.block.mlp_norm(x))

    def logits(self, hidden: Tensor) -> Tensor:
        """(..., D) -> (..., V')"""
        return hidden @ self.outer.T

    def loss(self, lessons: Lessons) -> Tensor:
        """Cross-entropy with the target's distribution, plus the distance of ĥ from h, which is
        guessed from noisy vectors."""
        hidden, spread = lessons.hidden, lessons.hidden.std()
        noisy = hidden + NOISE * spread * torch.randn_like(hidden)
        guess = self(lessons.tokens[:, 1:], noisy[:, :-1])  # of hidden[:, 1:]
        said = (hidden[:, 1:] @ self.own.T).softmax(dim=-1)  # (B, T - 1, V')
        right = F.cross_entropy(self.logits(guess).flatten(0, 1), said.flatten(0, 1))
        return right + F.smooth_l1_loss(guess / spread, hidden[:, 1:] / spread)


class Eagle(InRows):
    """Drafts with an EAGLE layer; `longest` defaults to the target's max_length."""

    def __init__(self, layer: EagleLayer, rows: int = 1, longest: int | None = None) -> None:
        longest, place = longest or layer.config.max_length, (layer.outer.device, layer.outer.dtype)
        super().__init__(DenseCache(layer.config, rows, 2 * longest, *place), longest)
        self.layer = layer
        self.exact = [0] * rows  # tokens in each row whose hidden vectors are the target's
        self.ends = [0] * rows  # their ends in the text: a row may start after a prefix
        self.owner: list[Hashable] = [None] * rows

    def _fits(self, asked: Asked) -> bool:
        """No draft before the target has read any of a request."""
        return len(asked.hidden) > 0 and super()._fits(asked)

    def _begin(self, rows: Sequence[int], requests: Sequence[Asked]) -> list[New]:
        """Cuts predicted vectors. A row starts over if the new hidden vectors do not continue the
        cached ones (another request's row, a preempted text)."""
        for row, asked in zip(rows, requests):
            follows = self.ends[row] == len(asked.tokens) - 1 - len(asked.hidden)
            if self.owner[row] != asked.key or not follows:
                self.owner[row], self.exact[row] = asked.key, 0
            self.ends[row] = len(asked.tokens) - 1
        self.cache.truncate(self.exact)
        for row, asked in zip(rows, requests):
            self.exact[row] += len(asked.hidden)  # these are read first
        return [(list(asked.tokens[-len(asked.hidden) :]), asked.hidden) for asked in requests]

    def _read(self, new: dict[int, New]) -> dict[int, tuple[Tensor, Tensor]]:
        before = list(self.cache.lengths)
        nothing = [], self.layer.outer.new_zeros(1, self.layer.config.hidden_size)
        pairs = [new.get(row, nothing) for row in range(len(before))]
        hidden = pad_sequence([h for _, h in pairs], batch_first=True)  # (B, T, D)
        width = hidden.shape[1]
        tokens = filled([t for t, _ in pairs], width).to(hidden.device)  # (B, T)
        guesses = self.layer(tokens, hidden, self.cache.reader(width))
        self.cache.lengths = [length + len(t) for length, (t, _) in zip(before, pairs)]
        last = {row: guesses[row, len(t) - 1 : len(t)] for row, (t, _) in new.items()}  # (1, D)
        return {row: (self._logits(guess[0]), guess) for row, guess in last.items()}

    def _logits(self, guess: Tensor) -> Tensor:
        """(D,) -> (V,): -inf for tokens that are not on the shortlist."""
        vocabulary = self.layer.embedding[0].num_embeddings
        logits = self.layer.logits(guess)
        return logits.new_full((vocabulary,), -torch.inf).scatter(0, self.layer.shortlist, logits)
