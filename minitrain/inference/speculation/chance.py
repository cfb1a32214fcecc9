"""One request's chance: whoever else is in the batch, and whatever was drafted, it stays its own.

Token t of a text is drawn with number t of the request's generator (logits.draw). For the depths of
a tree numbers are drawn ahead, and those that no token took wait for the tokens that come. So a
text whose drafts were picked is, token for token, the one that is written without drafts from a
generator of the same seed.
"""

from __future__ import annotations

import torch
from torch import Tensor


class Chance:
    def __init__(self, generator: torch.Generator | None = None) -> None:
        """Without a generator of its own, it draws from torch's global one."""
        self.generator = generator
        self.waiting: list[Tensor] = []

    def ahead(self, count: int) -> Tensor:
        """(count,) uniform in [0, 1): those of the next tokens; `advance` says how many came."""
        while len(self.waiting) < count:
            self.waiting.append(torch.rand((), generator=self.generator))
        return torch.stack(self.waiting[:count])

    def advance(self, tokens: int) -> None:
        del self.waiting[:tokens]

    def coins(self, count: int) -> Tensor:
        """(count,) uniform in [0, 1), for drafts and not for tokens."""
        return torch.rand(count, generator=self.generator)
