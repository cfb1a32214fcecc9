"""Outputs in OpenAI's two forms, /v1/completions and /v1/chat/completions.

An answer that is not streamed is its chunks put together, so that the two cannot differ.
"""

from __future__ import annotations

import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import Sequence

from minitrain.apps.serve.language import Language
from minitrain.inference.engine.answer import Output

Choice = dict[str, object]


class Format(ABC):
    """Of one request's answers, whose prompts are `prompts`; it counts what was told."""

    prefix, whole_object, chunk_object = "", "", ""

    def __init__(
        self, model: str, language: Language, prompts: Sequence[Sequence[int]], each: int = 1
    ) -> None:
        """`each`: how many answers one after the other have the same prompt."""
        self.language = language
        self.head = {"id": f"{self.prefix}-{uuid.uuid4().hex}", "created": int(time.time())}
        self.model = model
        self.before = [prompt[-1] for prompt in prompts]  # of each answer, its newest token
        self.offsets = [0] * len(prompts)  # of each answer, how long its pieces are
        self.each = each
        self.told = self.cached = 0

    @abstractmethod
    def choice(self, place: int, output: Output) -> Choice:
        """What a chunk says of answer `place`."""

    @abstractmethod
    def joined(self, choices: Sequence[Choice]) -> Choice:
        """All chunks of one answer as one."""

    def first(self, place: int) -> Choice | None:
        """Before all others."""
        return None

    def take(self, place: int, output: Output) -> Choice | None:
        """None for a token that has no text yet."""
        choice = self.choice(place, output)
        if place % self.each == 0:  # a prompt is counted once, and so is what was known of it
            self.cached += output.cached_tokens
        if output.drawn is not None:
            self.told += 1
            self.before[place] = output.drawn.token
            if not output.text and output.drawn.log_probability is None:
                return choice if output.finish_reason else None
        return choice

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

    def likeliest(self, place: int, output: Output) -> list[tuple[str, float]]:
        """(text, log probability) of the likeliest tokens at this place of the answer."""
        return [(self.piece(place, token), log) for token, log in output.drawn.likeliest]

    def piece(self, place: int, token: int) -> str:
        return self.language.piece(self.before[place], token)

    def _body(self, kind: str, choices: Sequence[Choice]) -> dict[str, object]:
        return {**self.head, "object": kind, "model": self.model, "choices": list(choices)}


class Completion(Format):
    prefix, whole_object, chunk_object = "cmpl", "text_completion", "text_completion"

    def choice(self, place: int, output: Output) -> Choice:
        reason = output.finish_reason
        return {
            "index": place,
            "text": output.text,
            "logprobs": self._logs(place, output),
            "finish_reason": reason,
        }

    def joined(self, choices: Sequence[Choice]) -> Choice:
        logs = [choice["logprobs"] for choice in choices if choice["logprobs"]]
        names = logs[0] if logs else ()
        together = {name: [each for one in logs for each in one[name]] for name in names}
        text = "".join(choice["text"] for choice in choices)
        return {**choices[-1], "text": text, "logprobs": together or None}

    def _logs(self, place: int, output: Output) -> dict[str, list] | None:
        if output.drawn is None or output.drawn.log_probability is None:
            return None
        text, log = self.piece(place, output.drawn.token), output.drawn.log_probability
        offset, self.offsets[place] = self.offsets[place], self.offsets[place] + len(text)
        return {
            "tokens": [text],
            "token_logprobs": [log],
            "top_logprobs": [dict([*self.likeliest(place, output), (text, log)])],
            "text_offset": [offset],
        }


class Chat(Format):
    prefix, whole_object, chunk_object = "chatcmpl", "chat.completion", "chat.completion.chunk"

    def first(self, place: int) -> Choice:
        delta = {"role": "assistant", "content": ""}
        return {"index": place, "delta": delta, "logprobs": None, "finish_reason": None}

    def choice(self, place: int, output: Output) -> Choice:
        return {
            "index": place,
            "delta": {"content": output.text} if output.text else {},
            "logprobs": self._logs(place, output),
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

    def _logs(self, place: int, output: Output) -> dict[str, list] | None:
        if output.drawn is None or output.drawn.log_probability is None:
            return None
        own = (self.piece(place, output.drawn.token), output.drawn.log_probability)
        likeliest = [one_log(*each) for each in self.likeliest(place, output)]
        return {"content": [{**one_log(*own), "top_logprobs": likeliest}]}


def one_log(text: str, log: float) -> dict[str, object]:
    """The bytes of half a character are not known from its text."""
    known = None if "\ufffd" in text else list(text.encode())
    return {"token": text, "logprob": log, "bytes": known}
