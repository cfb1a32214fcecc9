"""Outputs in OpenAI's two formats, /v1/completions and /v1/chat/completions.

A non-streamed answer is the concatenation of its chunks, so that the two cannot differ. With log
probabilities each token comes with its part of the text: a character made of several tokens belongs
to the last one, and a stop string's tokens are omitted with it.
"""

from __future__ import annotations

import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

from minitrain.apps.language import Language
from minitrain.inference.engine.answer import Output
from minitrain.inference.sampling import Drawn
from minitrain.inference.streaming import Window, shared
from minitrain.inference.vocabulary import id_name

Choice = dict[str, object]


class Format(ABC):
    """The answers of one request, whose prompts are `prompts`, with their usage."""

    prefix, whole_object, chunk_object = "", "", ""

    def __init__(
        self, model: str, language: Language, prompts: Sequence[Sequence[int]], each: int = 1
    ) -> None:
        """`each`: the number of consecutive answers to the same prompt."""
        self.language = language
        self.head = {"id": f"{self.prefix}-{uuid.uuid4().hex}", "created": int(time.time())}
        self.model = model
        self.spellings = [Spelling(language, prompt) for prompt in prompts]
        self.each = each
        self.generated = self.cached = 0

    @abstractmethod
    def choice(self, place: int, output: Output, spelt: Sequence[Spelt]) -> Choice:
        """A chunk's entry for answer `place`; `spelt` if log probabilities were requested."""

    @abstractmethod
    def joined(self, choices: Sequence[Choice]) -> Choice:
        """All chunks of one answer as one."""

    def first(self, place: int) -> Choice | None:
        """The entry before all others."""
        return None

    def take(self, place: int, output: Output) -> Choice | None:
        """The chunk's entry; None for a token without complete text yet."""
        if place % self.each == 0:  # count a prompt and its cached part once
            self.cached += output.cached_tokens
        self.generated += output.drawn is not None
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
            "completion_tokens": self.generated,
            "total_tokens": prompt_tokens + self.generated,
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
    """The chosen token first; another one with the same text is named by its id."""
    logs = {one.text: one.log}
    for each in one.likeliest:
        if each.token != one.token:
            logs[id_name(each.token) if each.text in logs else each.text] = each.log
    return logs


def one_log(one: Spelt) -> dict[str, object]:
    return {"token": one.text, "logprob": one.log, "bytes": list(one.bytes)}


@dataclass(frozen=True)
class Spelt:
    """A token's text; `offset`: characters of the answer before it."""

    token: int
    log: float
    text: str
    bytes: bytes
    offset: int = 0
    likeliest: tuple[Spelt, ...] = ()

    @property
    def end(self) -> int:
        return self.offset + len(self.text)

    def until(self, end: int) -> Spelt:
        """The part before character `end` of the answer."""
        text, gone = self.text[: end - self.offset], self.text[end - self.offset :]
        kept = max(0, len(self.bytes) - len(gone.encode()))
        return replace(self, text=text, bytes=self.bytes[:kept])


class Spelling:
    """The tokens of one answer, each held until its text is certain and the engine emits it."""

    def __init__(self, language: Language, prompt: Sequence[int]) -> None:
        self.language, self.prompt = language, prompt
        self.window: Window | None = None  # made when log probabilities are requested
        self.waiting: list[Drawn] = []  # the window's newest tokens, whose text is not certain
        self.spelt: list[Spelt] = []  # and tokens that the engine holds back
        self.given = self.spelled = 0  # characters of the answer: from the engine, and spelt

    def take(self, output: Output) -> list[Spelt]:
        """Tokens whose text is complete with this output; none without log probabilities."""
        self.given += len(output.text)
        drawn, ended = output.drawn, output.finish_reason is not None
        if drawn is not None and drawn.log_probability is not None:
            self.window = self.window or Window(self.language.decode, self.prompt)
            self.window.push(drawn.token)
            self.waiting.append(drawn)
        if self.waiting and (ended or self.window.settled):
            self._spell(self.window)
        if output.finish_reason == "stop" and drawn is not None:  # by a stop string
            return [one.until(self.given) for one in self.spelt if one.offset < self.given]
        out = [n for n, one in enumerate(self.spelt, 1) if one.text and one.end <= self.given]
        count = len(self.spelt) if ended else max(out, default=0)
        out, self.spelt = self.spelt[:count], self.spelt[count:]
        return out

    def _spell(self, window: Window) -> None:
        """Gives each waiting token the characters that it added to the text."""
        known = len(window.tokens) - len(self.waiting)
        texts = [window.decode(window.tokens[:n]) for n in range(known, len(window.tokens))]
        ends = [len(shared(text, window.text)) for text in texts]
        ends = list(accumulate([*ends, len(window.text)], max))
        for drawn, start, end in zip(self.waiting, ends, ends[1:]):
            self.spelt.append(self._one(drawn, window.text[start:end]))
            self.spelled += end - start
        self.waiting = []
        window.begin(window.tokens)

    def _one(self, drawn: Drawn, text: str) -> Spelt:
        vocabulary = self.language.vocabulary
        data = vocabulary.bytes_of(drawn.token)
        if data.decode(errors="replace") == f" {text}":  # an answer's first word loses its space
            data = data[1:]
        own = Spelt(drawn.token, drawn.log_probability, text, data, self.spelled)
        likeliest = [
            own if token == own.token else Spelt(token, log, *vocabulary.spelt(token))
            for token, log in drawn.likeliest
        ]
        return replace(own, likeliest=tuple(likeliest))
