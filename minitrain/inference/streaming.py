"""Incremental detokenization: text is returned once final, and the pieces add up to the whole.

A token may end inside a character, a word's space depends on whether text precedes it, and a run of
SentencePiece's byte tokens is only decoded to characters if the whole run is UTF-8. So the newest
tokens are decoded twice, alone and with a stray byte appended: text that the byte changes, or that
ends in �, is not final yet.

    tokens           [▁costs] [▁] [<0xE2>] [<0x82>] [<0xAC>]
    alone            costs €
    and a stray byte costs ����          "costs " is final; "€" once another token ends the run

Text that may become a stop string is held back until that is decided. Cost a token: decoding
about a dozen tokens, however long the text.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import lru_cache
from itertools import takewhile

Decode = Callable[[list[int]], str]
CONTEXT, LONGEST = 4, 8  # tokens that a window starts with, and its length before a restart
HALF = "\ufffd"  # decoded from bytes that are not a character, or not yet
FIRST_TOKENS = 4096  # includes any vocabulary's single bytes


@lru_cache(maxsize=4)
def stray_byte(decode: Decode) -> int | None:
    """The id of a token for a byte above ASCII, or None."""
    for token in range(FIRST_TOKENS):
        with suppress(Exception):  # there may be no such token
            if decode([token]) == HALF:
                return token
    return None


class Window:
    """The newest tokens, as many as needed to decode the next one as in the whole text.

    `text` is their text; `certain` is its beginning that no further token changes.
    """

    def __init__(self, decode: Decode, tokens: Sequence[int]) -> None:
        self.decode, self.stray = decode, stray_byte(decode)
        self.begin(tokens)

    def begin(self, tokens: Sequence[int]) -> None:
        """Keeps the last of `tokens`: enough of them to have text, unlike half a character."""
        length = CONTEXT
        self._read(tokens[-length:])
        while not self.certain and length < len(tokens):
            length *= 2
            self._read(tokens[-length:])

    def push(self, token: int) -> None:
        self._read([*self.tokens, token])

    @property
    def settled(self) -> bool:
        return self.text == self.certain

    def _read(self, tokens: Sequence[int]) -> None:
        self.tokens = list(tokens)
        self.text = spoilt = self.decode(self.tokens)
        if self.stray is not None:
            spoilt = self.decode([*self.tokens, self.stray])
        self.certain = shared(self.text, spoilt).rstrip(HALF)


def shared(text: str, other: str) -> str:
    """The common prefix."""
    if other.startswith(text):
        return text
    same = takewhile(lambda pair: pair[0] == pair[1], zip(text, other))
    return "".join(character for character, _ in same)


class TextStream:
    """`push(token)` returns the text that has become final; `finish()` the rest.

    It starts where the decoded prompt ends, or before a character that the prompt left incomplete.
    `stopped` means that a stop string was found; it and all text after it are left out.
    """

    def __init__(self, decode: Decode, prompt: Sequence[int], stop: Sequence[str] = ()) -> None:
        self.window, self.stop = Window(decode, prompt), tuple(stop)
        self.given = self.window.text  # text already returned: the prompt's, then the final text
        self.held = ""
        self.stopped = False

    def push(self, token: int) -> str:
        window = self.window
        window.push(token)
        new, fresh = self._after_given(window.certain), self._after_given(window.text)
        if new:
            self.given = window.certain
        if window.settled and len(window.tokens) > LONGEST:
            window.begin(window.tokens)
            self.given = window.text
        return self._released(new, fresh[len(new) :].rstrip(HALF))

    def finish(self) -> str:
        """The text held back, including an incomplete character."""
        if self.stopped:
            return ""
        rest = self._released(self._after_given(self.window.text)) + self.held
        self.held, self.given = "", self.window.text
        return rest

    def _after_given(self, text: str) -> str:
        return text[len(shared(self.given, text)) :]

    def _released(self, new: str, uncertain: str = "") -> str:
        """The part of held-back and new text that precedes, and cannot be part of, a stop
        string."""
        text = self.held + new
        found = [at for at in ((text + uncertain).find(string) for string in self.stop) if at >= 0]
        if found:
            self.stopped, self.held = True, ""
            return (text + uncertain)[: min(found)]
        lengths = [
            length
            for string in self.stop
            for length in range(1, min(len(string), len(text) + 1))
            if text.endswith(string[:length])
        ]
        certain = len(text) - max(lengths, default=0)
        self.held = text[certain:]
        return text[:certain]
