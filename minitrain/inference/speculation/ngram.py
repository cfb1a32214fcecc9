"""Prompt lookup: the continuation of the last occurrence of the text's final tokens.

    … the little red house . She went to the little red | house . She went …
              └─ 3 tokens found again ─┘         drafts: the tokens after them

Nothing is computed, and nothing is proposed without a match: it gains on texts that repeat
themselves or their prompt (code, summaries, lists) and loses little on others. Cost: a search
of the text, n·T comparisons. Saxena 2023, prompt lookup decoding; Yang et al., arXiv
2304.04487 (LLMA). Lab: e09b. Shapes: T tokens so far.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import numpy as np

from minitrain.errors import check_whole
from minitrain.inference.speculation.proposer import Asked, Draft


class NGram:
    """Searches for the last `longest` tokens, then fewer, down to one; takes the latest match."""

    def __init__(self, longest: int = 3) -> None:
        check_whole("longest", longest)
        self.sizes = range(longest, 0, -1)

    def propose(self, requests: Sequence[Asked]) -> list[Draft]:
        return [Draft.chain(self.lookup(asked.tokens, asked.most)) for asked in requests]

    def lookup(self, tokens: Sequence[int], most: int) -> list[int]:
        text = np.asarray(tokens)
        for size in self.sizes:
            if len(text) <= size:
                continue
            before = np.lib.stride_tricks.sliding_window_view(text[:-1], size)  # (T - size, size)
            found = (before == text[-size:]).all(axis=1).nonzero()[0]
            if len(found):
                start = int(found[-1]) + size
                return text[start : start + most].tolist()
        return []

    def forget(self, key: Hashable) -> None:
        pass
