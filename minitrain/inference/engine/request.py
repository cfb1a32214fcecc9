"""A request: its tokens, how many of them are computed, and the times of its events."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from enum import Enum

import torch

from minitrain.errors import InputError
from minitrain.inference.cache.blocks import Table
from minitrain.inference.parameters import SamplingParameters, as_whole
from minitrain.inference.streaming import TextStream
from minitrain.model.config import ModelConfig


class Status(Enum):
    WAITING = "waiting"
    RUNNING = "running"
    FINISHED = "finished"


@dataclass
class Times:
    """Times of a request's events, in seconds on the engine's clock."""

    arrived: float
    started: float | None = None  # its first token was scheduled
    tokens: list[float] = field(default_factory=list)  # each generated token's
    ended: float | None = None

    @property
    def queue_seconds(self) -> float | None:
        return None if self.started is None else self.started - self.arrived

    @property
    def first_token_seconds(self) -> float | None:
        """Time from arrival to the first token (TTFT)."""
        return self.tokens[0] - self.arrived if self.tokens else None

    @property
    def between_tokens_seconds(self) -> list[float]:
        """Times between consecutive tokens (ITL)."""
        return [after - before for before, after in zip(self.tokens, self.tokens[1:])]

    @property
    def total_seconds(self) -> float | None:
        return None if self.ended is None else self.ended - self.arrived


@dataclass(eq=False)
class Request:
    """`tokens` are the prompt's and the generated ones.

    A scheduler only needs the difference between `num_computed_tokens` and `len(tokens)`: large for
    a new prompt, 1 while decoding, all tokens again after a preemption.
    """

    id: str
    prompt: tuple[int, ...]
    parameters: SamplingParameters
    times: Times
    adapter: str | None = None
    adapter_key: Hashable = None  # the prefix cache's key; defaults to the adapter's name
    tokens: list[int] = field(init=False)
    table: Table = field(default_factory=Table)
    num_computed_tokens: int = 0
    num_cached_tokens: int = 0  # found in the prefix cache when it was last admitted
    status: Status = Status.WAITING
    finish_reason: str | None = None  # "length", "stop", "cancelled" or "error"
    text: TextStream | None = None  # if tokens are decoded
    model_ends: tuple[int, ...] = ()  # the model's own end tokens
    first: Request | None = None  # another answer to this prompt, which computes it for both
    generator: torch.Generator = field(init=False)
    ends: frozenset[int] = field(init=False)  # the answer ends before one of these tokens

    def __post_init__(self) -> None:
        self.tokens = list(self.prompt)
        if self.adapter_key is None:
            self.adapter_key = self.adapter
        self.generator = torch.Generator().manual_seed(self.parameters.seed)
        own = () if self.parameters.ignore_end else self.model_ends
        self.ends = frozenset((*self.parameters.stop_tokens, *own))

    @property
    def waits_for_first(self) -> bool:
        """True while another request computes its prompt, whose blocks it will share."""
        one = self.first
        return one is not None and one.is_running and one.num_computed_tokens < len(self.prompt)

    @property
    def is_running(self) -> bool:
        return self.status is Status.RUNNING

    @property
    def generated(self) -> list[int]:
        return self.tokens[len(self.prompt) :]

    @property
    def num_left(self) -> int:
        """The number of tokens that may still be generated."""
        return len(self.prompt) + self.parameters.max_new_tokens - len(self.tokens)

    @property
    def most_tokens(self) -> int:
        """The most tokens that will ever be cached: the answer's last one is never read."""
        return len(self.prompt) + self.parameters.max_new_tokens - 1


def as_tokens(prompt: Sequence[int]) -> list[int]:
    """A list, an array or a tensor (T,) of token ids; InputError for anything else, including a
    string, whose digits would also convert to numbers."""
    try:
        ordered = not isinstance(prompt, (str, bytes, Mapping, Set))
        tokens = list(map(as_whole, prompt)) if ordered else None
    except TypeError:  # not a collection
        tokens = None
    if tokens is None or None in tokens:
        raise InputError(
            f"a prompt is {prompt!r:.40}: give a list of token numbers, tokenizer.encode(text)"
        )
    return tokens


def check_prompt(prompt: list[int], max_new_tokens: int, config: ModelConfig) -> None:
    """InputError for tokens outside the vocabulary or a prompt too long for the model."""
    if not prompt:
        raise InputError("the prompt is empty and one token is needed: begin with bos")
    vocabulary, longest = config.vocab_size, config.max_length
    if odd := [token for token in prompt if not 0 <= token < vocabulary]:
        raise InputError(
            f"token {odd[0]} is none of the model's 0 to {vocabulary - 1}: encode the prompt with "
            "the model's own tokenizer"
        )
    if len(prompt) + max_new_tokens > longest:
        raise InputError(
            f"a prompt of {len(prompt)} tokens and an answer of up to {max_new_tokens} are longer "
            f"than the {longest} tokens that the model can read: shorten one of them"
        )
