"""Outputs in OpenAI's two forms, /v1/completions and /v1/chat/completions.

An answer that is not streamed is its chunks put together, so that the two cannot differ.
"""

from __future__ import annotations

import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import Sequence

from minitrain.apps.serve.language import Language
from minitrain.apps.serve.spelling import Spelling, Spelt
from minitrain.inference.engine.answer import Output
from minitrain.inference.vocabulary import id_name

Choice = dict[str, object]


class Format(ABC):
    """The answers of one request, whose prompts are `prompts`; it counts the generated tokens."""

    prefix, whole_object, chunk_object = "", "", ""

    def __init__(
        self, model: str, language: Language, prompts: Sequence[Sequence[int]], each: int = 1
    ) -> None:
        """`each`: how many answers one after the other have the same prompt."""
        self.language = language
        self.head = {"id": f"{self.prefix}-{uuid.uuid4().hex}", "created": int(time.time())}
        self.model = model
        self.spellings = [Spelling(language, prompt) for prompt in prompts]
        self.each = each
        self.told = self.cached = 0

    @abstractmethod
    def choice(self, place: int, output: Output, spelt: Sequence[Spelt]) -> Choice:
        """A chunk's entry for answer `place`; `spelt` where log probabilities are asked for."""

    @abstractmethod
    def joined(self, choices: Sequence[Choice]) -> Choice:
        """All chunks of one answer as one."""

    def first(self, place: int) -> Choice | None:
        """Before all others."""
        return None

    def take(self, place: int, output: Output) -> Choice | None:
        """None for a token that has no text yet."""
        if place % self.each == 0:  # a prompt is counted once, and so is what was known of it
            self.cached += output.cached_tokens
        self.told += output.drawn is not None
        spelt = self.spellings[place].take(output)
        if not (output.text or spelt or output.finish_reason):
            return None
        return self.choice(place, output, spelt)

    def chunk(self, choices: Sequence[Choice], usage: dict | None = None) -> dict[str, object]:
        return self._body(self.chunk_object, choices) | ({"usage": usage} if usage else {})

    def whole(self, choices: Sequence[Choice], usage: dict) -> dict[str, object]:
        return self._body(self.whole_object, choices) | {"usage": usage}

    def usage(self, prompt_tokens: int) -> dict[str, object]:
        return {
            "prompt_tokens": prompt_tokens,
            "completion_tokens": self.told,
            "total_tokens": prompt_tokens + self.told,
            "prompt_tokens_details": {"cached_tokens": self.cached},
        }

    def _body(self, kind: str, choices: Sequence[Choice]) -> dict[str, object]:
        return {**self.head, "object": kind, "model": self.model, "choices": list(choices)}


class Completion(Format):
    prefix, whole_object, chunk_object = "cmpl", "text_completion", "text_completion"

    def choice(self, place: int, output: Output, spelt: Sequence[Spelt]) -> Choice:
        reason = output.finish_reason
        return {
            "index": place,
            "text": output.text,
            "logprobs": self._logs(spelt),
            "finish_reason": reason,
        }

    def joined(self, choices: Sequence[Choice]) -> Choice:
        logs = [choice["logprobs"] for choice in choices if choice["logprobs"]]
        names = logs[0] if logs else ()
        together = {name: [each for one in logs for each in one[name]] for name in names}
        text = "".join(choice["text"] for choice in choices)
        return {**choices[-1], "text": text, "logprobs": together or None}

    def _logs(self, spelt: Sequence[Spelt]) -> dict[str, list] | None:
        if not spelt:
            return None
        return {
            "tokens": [one.text for one in spelt],
            "token_logprobs": [one.log for one in spelt],
            "top_logprobs": [by_text(one) for one in spelt],
            "text_offset": [one.offset for one in spelt],
        }


class Chat(Format):
    prefix, whole_object, chunk_object = "chatcmpl", "chat.completion", "chat.completion.chunk"

    def first(self, place: int) -> Choice:
        delta = {"role": "assistant", "content": ""}
        return {"index": place, "delta": delta, "logprobs": None, "finish_reason": None}

    def choice(self, place: int, output: Output, spelt: Sequence[Spelt]) -> Choice:
        return {
            "index": place,
            "delta": {"content": output.text} if output.text else {},
            "logprobs": self._logs(spelt),
            "finish_reason": output.finish_reason,
        }

    def joined(self, choices: Sequence[Choice]) -> Choice:
        logs = [each for c in choices if c["logprobs"] for each in c["logprobs"]["content"]]
        text = "".join(choice["delta"].get("content", "") for choice in choices)
        return {
            "index": choices[-1]["index"],
            "message": {"role": "assistant", "content": text, "refusal": None},
            "logprobs": {"content": logs} if logs else None,
            "finish_reason": choices[-1]["finish_reason"],
        }

    def _logs(self, spelt: Sequence[Spelt]) -> dict[str, list] | None:
        logs = [
            {**one_log(one), "top_logprobs": [one_log(each) for each in one.likeliest]}
            for one in spelt
        ]
        return {"content": logs} if logs else None


def by_text(one: Spelt) -> dict[str, float]:
    """The token's own first; another of the same text goes by its number."""
    logs = {one.text: one.log}
    for each in one.likeliest:
        if each.token != one.token:
            logs[id_name(each.token) if each.text in logs else each.text] = each.log
    return logs


def one_log(one: Spelt) -> dict[str, object]:
    return {"token": one.text, "logprob": one.log, "bytes": list(one.bytes)}
