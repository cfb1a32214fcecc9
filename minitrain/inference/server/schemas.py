"""What clients may ask, in OpenAI's words; what is not here, or is of another type, is refused.

Parameters of OpenAI's that the engine does not have may be given with the value that changes
nothing (`best_of: 1`): a client that asks for more is told so, and not given something else.
vLLM's top_k, min_p, repetition_penalty, stop_token_ids and ignore_eos are here as well.
"""

from __future__ import annotations

import secrets
from abc import abstractmethod
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from minitrain.inference.parameters import SamplingParameters

MOST_ANSWERS, MOST_LIKELIEST, MOST_STOPS = 128, 20, 16
NOT_HERE = {"best_of", "echo", "suffix", "logit_bias", "response_format", "tools"}
Token = Annotated[int, Field(ge=0)]
Stop = Annotated[str, Field(min_length=1)]
Penalty = Annotated[float, Field(ge=-2, le=2)]


class Strict(BaseModel):
    """No "5" for 5, no NaN, and no field that nobody knows."""

    model_config = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)


class StreamOptions(Strict):
    include_usage: bool = False


class Asked(Strict):
    """What completions and chats have in common."""

    model: str
    max_tokens: int | None = Field(None, ge=1)
    temperature: float | None = Field(None, ge=0, le=2)
    top_p: float | None = Field(None, gt=0, le=1)
    top_k: int | None = Field(None, ge=-1)  # 0 and -1: all
    min_p: float | None = Field(None, ge=0, le=1)
    repetition_penalty: float | None = Field(None, gt=0, le=100)
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    n: int | None = Field(None, ge=1, le=MOST_ANSWERS)
    seed: int | None = Field(None, ge=-(2**63), lt=2**63)
    stop: Stop | Annotated[list[Stop], Field(max_length=MOST_STOPS)] | None = None
    stop_token_ids: list[Token] | None = None
    ignore_eos: bool = False
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    user: str | None = None
    logit_bias: Annotated[dict[str, Any], Field(max_length=0)] | None = None

    @property
    @abstractmethod
    def likeliest(self) -> int | None:
        """How many log probabilities of each token."""

    @property
    def most(self) -> int | None:
        return self.max_tokens

    @property
    def include_usage(self) -> bool:
        return self.stream_options is not None and self.stream_options.include_usage

    def parameters(self, new_tokens: int, ends: tuple[int, ...]) -> list[SamplingParameters]:
        """Of each of the n answers: with seed s, answer i is that of seed s + i alone."""
        seed = secrets.randbits(62) if self.seed is None else self.seed
        stop = (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ())
        return [
            SamplingParameters(
                max_new_tokens=new_tokens,
                temperature=1.0 if self.temperature is None else self.temperature,
                top_k=None if self.top_k in (-1, 0) else self.top_k,
                top_p=self.top_p,
                min_p=self.min_p or None,
                repetition_penalty=self.repetition_penalty or 1.0,
                presence_penalty=self.presence_penalty or 0.0,
                frequency_penalty=self.frequency_penalty or 0.0,
                stop=stop,
                stop_tokens=(() if self.ignore_eos else ends) + tuple(self.stop_token_ids or ()),
                log_probabilities=self.likeliest,
                ignore_end=self.ignore_eos,
                seed=(seed + answer) % 2**63,
            )
            for answer in range(self.n or 1)
        ]


class AskedCompletion(Asked):
    prompt: (
        str
        | Annotated[list[str], Field(min_length=1, max_length=MOST_ANSWERS)]
        | Annotated[list[Token], Field(min_length=1)]
        | Annotated[
            list[Annotated[list[Token], Field(min_length=1)]],
            Field(min_length=1, max_length=MOST_ANSWERS),
        ]
    )
    logprobs: int | None = Field(None, ge=0, le=MOST_LIKELIEST)
    best_of: Literal[1] | None = None
    echo: Literal[False] | None = None
    suffix: Literal[""] | None = None

    @property
    def likeliest(self) -> int | None:
        return self.logprobs

    @property
    def prompts(self) -> list[str] | list[list[int]]:
        """Each a text, or tokens."""
        if isinstance(self.prompt, str) or isinstance(self.prompt[0], int):
            return [self.prompt]
        return self.prompt


class Part(Strict):
    type: Literal["text"]
    text: str


class ChatMessage(Strict):
    role: Literal["system", "developer", "user", "assistant"]
    content: str | list[Part]
    name: str | None = None

    @property
    def plain(self) -> dict[str, str]:
        """Templates know OpenAI's newer "developer" by its older name."""
        parts = [self.content] if isinstance(self.content, str) else [p.text for p in self.content]
        role = "system" if self.role == "developer" else self.role
        return {"role": role, "content": "".join(parts)}


class AskedChat(Asked):
    messages: list[ChatMessage] = Field(min_length=1)
    max_completion_tokens: int | None = Field(None, ge=1)
    logprobs: bool | None = None
    top_logprobs: int | None = Field(None, ge=0, le=MOST_LIKELIEST)
    response_format: dict[Literal["type"], Literal["text"]] | None = None
    tools: Annotated[list[Any], Field(max_length=0)] | None = None

    @property
    def likeliest(self) -> int | None:
        return (self.top_logprobs or 0) if self.logprobs else None

    @property
    def most(self) -> int | None:
        return self.max_completion_tokens or self.max_tokens
