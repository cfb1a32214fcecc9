"""Text from tokens as they come: a piece is given once it is final, and all are the decoded whole.

A token may end inside a character, a word's space depends on whether text stands before it, and a
run of SentencePiece's byte tokens is characters only where the whole run is UTF-8. So the newest
tokens are decoded twice, alone and with a stray byte behind them: text that the byte changes, or
that ends in �, is not certain yet.

    tokens           [▁costs] [▁] [<0xE2>] [<0x82>] [<0xAC>]
    alone            costs €
    and a stray byte costs ����          "costs " is certain; "€" is when another token ends the run

Text that may become a stop string is held back until it does, or does not. Cost a token: decoding
about a dozen of them, however long the text.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import lru_cache
from itertools import takewhile

Decode = Callable[[list[int]], str]
CONTEXT, LONGEST = 4, 8  # tokens that a window is begun with, and after which it is begun anew
HALF = "\ufffd"  # decoded from bytes that are no character, or not yet
FIRST_TOKENS = 4096  # any vocabulary's single bytes are among them


@lru_cache(maxsize=4)
def stray_byte(decode: Decode) -> int | None:
    """A token that is a byte above ASCII, if there is one."""
    for token in range(FIRST_TOKENS):
        with suppress(Exception):  # there may be no such token
            if decode([token]) == HALF:
                return token
    return None


class Window:
    """The newest tokens, as many as the next one needs to be decoded as in the whole text.

    `text` is theirs; `certain` is the beginning of it that no further token changes.
    """

    def __init__(self, decode: Decode, tokens: Sequence[int]) -> None:
        self.decode, self.stray = decode, stray_byte(decode)
        self.begin(tokens)

    def begin(self, tokens: Sequence[int]) -> None:
        """Keeps the last of `tokens`: special ones alone, or half a character, have no text."""
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
    """The beginning that both have."""
    if other.startswith(text):
        return text
    same = takewhile(lambda pair: pair[0] == pair[1], zip(text, other))
    return "".join(character for character, _ in same)


class TextStream:
    """`push(token)` gives the text that has become certain; `finish()` the rest.

    It begins where the decoded prompt ends, or before a character that the prompt left unfinished.
    After `stopped`, a stop string has come; the string and all text after it are left out.
    """

    def __init__(self, decode: Decode, prompt: Sequence[int], stop: Sequence[str] = ()) -> None:
        self.window, self.stop = Window(decode, prompt), tuple(stop)
        self.given = self.window.text  # of the window's text: the prompt's, then what was certain
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
        """All that was held back, and half a character as it is."""
        if self.stopped:
            return ""
        rest = self._released(self._after_given(self.window.text)) + self.held
        self.held, self.given = "", self.window.text
        return rest

    def _after_given(self, text: str) -> str:
        return text[len(shared(self.given, text)) :]

    def _released(self, new: str, uncertain: str = "") -> str:
        """The part of held-back and new text that comes before, and cannot belong to, a stop
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
