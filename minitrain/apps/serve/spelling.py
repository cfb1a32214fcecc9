"""Generated tokens with their log probabilities, and each one's own part of the answer.

Put together, the parts are the answer: a character that several tokens make is the last one's, and
tokens of a stop string are left out with it. A token that ends inside a character has its bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

from minitrain.apps.serve.language import Language
from minitrain.inference.engine.answer import Output
from minitrain.inference.sampling import Drawn
from minitrain.inference.streaming import Window, shared


@dataclass(frozen=True)
class Spelt:
    """`offset`: characters of the answer before it."""

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
        """Without what is behind so many characters of the answer."""
        text, gone = self.text[: end - self.offset], self.text[end - self.offset :]
        kept = max(0, len(self.bytes) - len(gone.encode()))
        return replace(self, text=text, bytes=self.bytes[:kept])


class Spelling:
    """The tokens of one answer: each waits until its text is certain, and until the engine gives
    it."""

    def __init__(self, language: Language, prompt: Sequence[int]) -> None:
        self.language, self.prompt = language, prompt
        self.window: Window | None = None  # made when log probabilities are asked for
        self.waiting: list[Drawn] = []  # the window's newest tokens, whose text is not certain
        self.spelt: list[Spelt] = []  # and tokens that the engine holds back
        self.given = self.spelled = 0  # characters of the answer: from the engine, and spelt

    def take(self, output: Output) -> list[Spelt]:
        """Tokens whose text is out with this output; none without log probabilities."""
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
        """Gives each waiting token what it added to the text; there may be half characters."""
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
        if data.decode(errors="replace") == f" {text}":  # an answer's first word has no space
            data = data[1:]
        own = Spelt(drawn.token, drawn.log_probability, text, data, self.spelled)
        likeliest = [
            own if token == own.token else Spelt(token, log, *vocabulary.spelt(token))
            for token, log in drawn.likeliest
        ]
        return replace(own, likeliest=tuple(likeliest))
