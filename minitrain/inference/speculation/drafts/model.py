"""A draft model: any Transformer of the same vocabulary, cheaper than the target.

    its cache   Once upon a time there was a       it had drafted "time there was a"
    the text    Once upon a time there lived       of which the target kept "time there"
                                                   cut behind "there", read "lived", draft on

What it has read is compared with the text at each call: all that they share stays in the cache and
the rest is cut. So a rejection, a round in which everything was kept (the last draft and the bonus
token were not read yet), and a text that was preempted and came back are one case. All requests
draft in one batch. Cost a round: g passes of the draft model, the first over what is new.
Paper: Leviathan et al., arXiv 2211.17192. Lab: e09b. Shapes: B rows  T tokens  V vocabulary.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import torch
from torch import Tensor

from minitrain.inference.cache.dense import DenseCache, read_on
from minitrain.inference.speculation.drafts.rows import Rows, batched
from minitrain.inference.speculation.proposer import Asked, Draft, chosen, drawn
from minitrain.model.transformer import Transformer


class DraftModel:
    """`rows`: requests at once, more take turns; `longest`: tokens of a text, which gets no drafts
    beyond (None: what the model was made for)."""

    def __init__(self, model: Transformer, rows: int = 1, longest: int | None = None) -> None:
        self.model, self.longest = model, longest or model.config.max_length
        self.vocab_size = model.config.vocab_size
        self.cache = DenseCache.of(model, rows, room=2 * self.longest)  # a text, and one unread
        self.rows = Rows(rows)
        self.read: list[list[int]] = [[] for _ in range(rows)]  # what the cache holds, row by row

    def propose(self, requests: Sequence[Asked]) -> list[Draft]:
        drafts = [Draft() for _ in requests]
        fitting = [
            i for i, asked in enumerate(requests) if len(asked.tokens) + asked.most <= self.longest
        ]
        for some in batched(fitting, len(self.read)):
            for i, draft in zip(some, self._draft([requests[i] for i in some])):
                drafts[i] = draft
        return drafts

    @torch.no_grad()
    def _draft(self, requests: Sequence[Asked]) -> list[Draft]:
        """For as many requests as there are rows, at most."""
        rows = self.rows.of([asked.key for asked in requests])
        unread = [self._cut(row, asked.tokens) for row, asked in zip(rows, requests)]
        tokens: list[list[int]] = [[] for _ in requests]
        q: list[list[Tensor | None]] = [[] for _ in requests]
        for step in range(max(asked.most for asked in requests)):
            going = [i for i, asked in enumerate(requests) if step < asked.most]
            logits = self._read({rows[i]: unread[i] for i in going})
            for i in going:
                token, probabilities = chosen(requests[i], logits[rows[i]])
                tokens[i].append(token)
                q[i].append(probabilities)
                unread[i] = [token]
        return [drawn(*each) for each in zip(tokens, q)]

    def _cut(self, row: int, text: Sequence[int]) -> list[int]:
        """Rolls the row back to what it shares with a text, and says what it has not read."""
        shared = common_length(self.read[row], text[:-1])  # the newest token is always read anew
        self.read[row] = self.read[row][:shared]
        self.cache.truncate([len(read) for read in self.read])
        return list(text[shared:])

    def _read(self, unread: dict[int, list[int]]) -> dict[int, Tensor]:
        """New tokens, at least one for each of these rows -> logits (V,) after the last of each."""
        width = max(map(len, unread.values()))
        new = [unread.get(row, []) for row in range(len(self.read))]
        tokens = torch.tensor([[*row, *[0] * (width - len(row))] for row in new])  # (B, T)
        hidden = read_on(self.model, tokens.to(self.model.embed.weight.device), self.cache)
        for row, added in unread.items():
            self.read[row] += added
        self.cache.truncate([len(read) for read in self.read])  # what filled up is forgotten
        last = torch.stack([hidden[row, len(added) - 1] for row, added in unread.items()])
        return dict(zip(unread, self.model.head(last)))

    def forget(self, key: Hashable) -> None:
        self.rows.forget(key)


def common_length(one: Sequence[int], other: Sequence[int]) -> int:
    """With how many equal tokens both begin."""
    for at, (a, b) in enumerate(zip(one, other)):
        if a != b:
            return at
    return min(len(one), len(other))
