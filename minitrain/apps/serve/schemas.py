"""Request schemas of OpenAI's API; unknown fields and wrong types are refused.

OpenAI's parameters that this server lacks may have a neutral value (`store: false`); any other is
refused, since the answer would not be the requested one. vLLM's top_k, min_p, repetition_penalty,
stop_token_ids and ignore_eos are supported as well.
"""

from __future__ import annotations

import secrets
from abc import abstractmethod
from collections.abc import Callable
from typing import Annotated, Any, Literal, Union

from pydantic import (
    BaseModel,
    ConfigDict,
    Discriminator,
    Field,
    Tag,
    ValidationInfo,
    field_validator,
)
from pydantic_core import PydanticCustomError, PydanticKnownError

from minitrain.inference.parameters import SamplingParameters

MOST_ANSWERS, MOST_LIKELIEST, MOST_STOPS = 128, 20, 16
MEMBER = "<"  # prefix of a union member's name, which is not part of a field's path


def either(kind: Callable[[object], str | None], words: str, **members: object) -> object:
    """A union whose member is chosen by `kind`, so that errors refer to that member only."""
    tagged = tuple(Annotated[member, Tag(MEMBER + name)] for name, member in members.items())
    message = f"Input should be {words}"
    chosen = Discriminator(
        lambda value: MEMBER + str(kind(value)),
        custom_error_type="no_member",
        custom_error_message=message,
    )
    return Annotated[Union[tagged], chosen]  # noqa: UP007


def one_or_many(value: object) -> str | None:
    return {str: "one", list: "many"}.get(type(value))


def prompts_kind(value: object) -> str | None:
    """The kind of a list, by its first element; an empty list is too short for any."""
    if isinstance(value, list):
        return {str: "texts", int: "tokens", list: "rows"}.get(type([*value, ""][0]))
    return "text" if isinstance(value, str) else None


Token = Annotated[int, Field(ge=0)]
Tokens = Annotated[list[Token], Field(min_length=1)]
Stop = Annotated[str, Field(min_length=1)]
Stops = either(
    one_or_many,
    "a string or a list of strings",
    one=Stop,
    many=Annotated[list[Stop], Field(max_length=MOST_STOPS)],
)
Several = Field(min_length=1, max_length=MOST_ANSWERS)
Prompt = either(
    prompts_kind,
    "a string, a list of strings, a list of tokens, or a list of lists of tokens",
    text=str,
    texts=Annotated[list[str], Several],
    tokens=Tokens,
    rows=Annotated[list[Tokens], Several],
)
Penalty = Annotated[float, Field(ge=-2, le=2)]
NoObject = Annotated[dict[str, Any], Field(max_length=0)] | None
NoList = Annotated[list[Any], Field(max_length=0)] | None


class Strict(BaseModel):
    """No "5" for 5, no NaN, and no unknown fields."""

    model_config = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)


class Unsupported(Strict):
    """Parameters that may only have these values: the server supports no others."""

    logit_bias: NoObject = None


class UnsupportedInChats(Unsupported):
    audio: None = None
    function_call: Literal["none", "auto"] | None = None
    functions: NoList = None
    metadata: NoObject = None
    modalities: Annotated[list[Literal["text"]], Field(max_length=1)] | None = None
    moderation: None = None
    parallel_tool_calls: bool | None = None  # without tools, no effect
    prediction: None = None
    prompt_cache_options: dict[Literal["mode", "ttl"], Literal["implicit", "30m"]] | None = None
    prompt_cache_retention: Literal["in_memory"] | None = None
    reasoning_effort: None = None
    response_format: dict[Literal["type"], Literal["text"]] | None = None
    service_tier: Literal["auto", "default"] | None = None
    store: Literal[False] | None = None
    tool_choice: Literal["none", "auto"] | None = None
    tools: NoList = None
    verbosity: Literal["medium"] | None = None
    web_search_options: None = None


class UnsupportedInMessages(Strict):
    """Fields of a message; OpenAI's client sends them back as null with every answer."""

    annotations: NoList = None
    audio: None = None
    function_call: None = None
    parsed: None = None
    refusal: None = None
    tool_calls: NoList = None


class StreamOptions(Strict):
    include_usage: bool | None = None
    include_obfuscation: Literal[False] | None = None


class Asked(Unsupported):
    """The fields that completions and chats share."""

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
    stop: Stops | None = None
    stop_token_ids: list[Token] | None = None
    ignore_eos: bool = False
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    user: str | None = None

    @property
    @abstractmethod
    def likeliest(self) -> int | None:
        """The number of top log probabilities for each token."""

    @property
    def most(self) -> int | None:
        return self.max_tokens

    @property
    def include_usage(self) -> bool:
        return self.stream_options is not None and bool(self.stream_options.include_usage)

    def parameters(self, new_tokens: int, ends: tuple[int, ...]) -> list[SamplingParameters]:
        """Parameters of each of the n answers; answer i with seed s equals a single one with seed s
        + i."""
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
    prompt: Prompt
    logprobs: int | None = Field(None, ge=0, le=MOST_LIKELIEST)
    best_of: int | None = None
    echo: Literal[False] | None = None
    suffix: Literal[""] | None = None

    @field_validator("best_of")
    @classmethod
    def _best_of_all(cls, best_of: int | None, known: ValidationInfo) -> int | None:
        """Only n: all of n answers are the best n."""
        if best_of not in (None, known.data.get("n") or 1):
            raise PydanticCustomError("best_of", "Input should be n")
        return best_of

    @property
    def likeliest(self) -> int | None:
        return self.logprobs

    @property
    def prompts(self) -> list[str] | list[list[int]]:
        """Each a string or a list of tokens."""
        if isinstance(self.prompt, str) or isinstance(self.prompt[0], int):
            return [self.prompt]
        return self.prompt


class Part(Strict):
    type: Literal["text"]
    text: str
    prompt_cache_breakpoint: None = None


class ChatMessage(UnsupportedInMessages):
    role: Literal["system", "developer", "user", "assistant"]
    content: (
        either(one_or_many, "a string or a list of text parts", one=str, many=list[Part]) | None
    ) = Field(None, validate_default=True)
    name: str | None = None

    @field_validator("content")
    @classmethod
    def _null_of_the_assistant(
        cls, content: str | list[Part] | None, known: ValidationInfo
    ) -> str | list[Part]:
        if content is None and known.data.get("role") != "assistant":
            raise PydanticKnownError("missing")
        return content or ""

    @property
    def plain(self) -> dict[str, str]:
        """The message for a template, with OpenAI's "developer" role as "system"."""
        parts = [self.content] if isinstance(self.content, str) else [p.text for p in self.content]
        role = "system" if self.role == "developer" else self.role
        named = {} if self.name is None else {"name": self.name}
        return {"role": role, "content": "".join(parts), **named}


class AskedChat(Asked, UnsupportedInChats):
    messages: list[ChatMessage] = Field(min_length=1)
    max_completion_tokens: int | None = Field(None, ge=1)
    logprobs: bool | None = None
    top_logprobs: int | None = Field(None, ge=0, le=MOST_LIKELIEST)
    prompt_cache_key: str | None = None  # successors of `user`
    safety_identifier: str | None = None

    @field_validator("top_logprobs")
    @classmethod
    def _with_logprobs(cls, most: int | None, known: ValidationInfo) -> int | None:
        if most and not known.data.get("logprobs"):
            raise PydanticCustomError("alone", "Input should come with logprobs: true")
        return most

    @property
    def likeliest(self) -> int | None:
        return (self.top_logprobs or 0) if self.logprobs else None

    @property
    def most(self) -> int | None:
        return min(filter(None, (self.max_completion_tokens, self.max_tokens)), default=None)


NOT_HERE = {
    *UnsupportedInChats.model_fields,
    *UnsupportedInMessages.model_fields,
    *("best_of", "echo", "suffix", "include_obfuscation", "prompt_cache_breakpoint"),
}
