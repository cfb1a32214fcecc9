"""Text from tokens as they come: never half a character, never the beginning of a stop string.

A token may be a part of a character, or a word whose space depends on what stands before it. So a
few tokens are decoded twice, with and without the new ones, and the difference is what is new:

    tokens   … [there] [was] [a] [<0xF0>]
               └ context ┘   └ not told yet: decoded with the context, it ends in �

What could become a stop string is held back until it does, or does not. Cost: O(1) a token.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

Decode = Callable[[list[int]], str]
CONTEXT = 4  # tokens before the new ones, at the beginning
HALF = "\ufffd"  # what decoders put for bytes that are no character yet
LONGEST_CHARACTER = 4  # tokens, one a byte; what is no character after so many never will be


class TextStream:
    """`push(token)` gives the text that is certain now; `finish()` the rest.

    After `stopped`, a stop string has come; it and what is behind it are left out.
    """

    def __init__(self, decode: Decode, prompt: Sequence[int], stop: Sequence[str] = ()) -> None:
        self.decode, self.stop = decode, tuple(stop)
        self.tokens = list(prompt[-CONTEXT:])
        self.told, self.context = len(self.tokens), 0  # where the new tokens, the context begin
        self.held = ""
        self.stopped = False

    def push(self, token: int) -> str:
        self.tokens.append(token)
        new = self._new()
        if new.endswith(HALF) and len(self.tokens) - self.told < LONGEST_CHARACTER:
            return ""
        self.context, self.told = self.told, len(self.tokens)
        return self._released(new)

    def finish(self) -> str:
        """What was held back, and half a character as it is."""
        rest = "" if self.stopped else self._released(self._new()) + self.held
        self.held, self.told = "", len(self.tokens)
        return rest

    def _new(self) -> str:
        known = self.decode(self.tokens[self.context : self.told])
        return self.decode(self.tokens[self.context :])[len(known) :]

    def _released(self, new: str) -> str:
        """Of what is held back and new: all that is before, and cannot be of, a stop string."""
        text = self.held + new
        found = [at for at in (text.find(string) for string in self.stop) if at >= 0]
        if found:
            self.stopped, self.held = True, ""
            return text[: min(found)]
        lengths = [
            length
            for string in self.stop
            for length in range(1, min(len(string), len(text) + 1))
            if text.endswith(string[:length])
        ]
        certain = len(text) - max(lengths, default=0)
        self.held = text[certain:]
        return text[:certain]
