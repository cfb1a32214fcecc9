"""A request that is written with drafts: its text, its chance, and what its drafts came to."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import torch
from torch import Tensor

from minitrain.errors import InputError
from minitrain.inference.parameters import SamplingParameters
from minitrain.inference.speculation.chance import Chance
from minitrain.inference.speculation.proposer import Asked


class Request:
    """`tokens` is prompt and text so far, `told` what was written, `rounds` its passes."""

    def __init__(
        self,
        key: Hashable,
        prompt: Sequence[int],
        parameters: SamplingParameters,
        generator: torch.Generator | None = None,
    ) -> None:
        if not prompt:
            raise InputError(
                "the prompt is empty and one token is needed: begin with the end token"
            )
        self.key, self.prompt, self.parameters = key, tuple(prompt), parameters
        self.tokens = list(prompt)
        self.chance = Chance(generator or torch.Generator().manual_seed(parameters.seed))
        self.ended = False
        self.unshown: list[Tensor] = []  # (n, D) each: what no proposer has seen yet
        self.rounds: list[tuple[int, int]] = []  # of each pass: tokens drafted, tokens kept

    @property
    def told(self) -> list[int]:
        """The generated tokens, without the one that ended them."""
        return self.tokens[len(self.prompt) :]

    @property
    def left(self) -> int:
        """The number of tokens that may still be generated."""
        return self.parameters.max_new_tokens - (len(self.tokens) - len(self.prompt))

    @property
    def tokens_a_pass(self) -> float:
        """Mean number of tokens per pass of the target."""
        return len(self.told) / max(1, len(self.rounds))

    def asked(self, most: int, width: int) -> Asked:
        """The input of a proposer that is to draft `most` tokens; hidden vectors have `width` D."""
        hidden = torch.cat(self.unshown) if self.unshown else torch.empty(0, width)
        self.unshown = []
        generator = self.chance.generator
        return Asked(self.key, self.tokens, most, self.parameters, hidden, generator)

    def extend(self, new: Sequence[int]) -> None:
        """Up to a stop token, which may stand inside an accepted run, or to the limit."""
        for token in new:
            if token in self.parameters.stop_tokens:
                self.ended = True
                return
            self.tokens.append(token)
            if self.left == 0:
                self.ended = True
                return
