"""A model's words: text to tokens and back, as the server needs them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tokenizers import Tokenizer

from minitrain.apps.serve.chat import ChatTemplate, Message
from minitrain.errors import InputError


@dataclass(frozen=True)
class Language:
    """An answer ends before one of the tokens `ends`; `begin` is what an empty prompt becomes."""

    tokenizer: Tokenizer
    begin: tuple[int, ...] = ()
    ends: tuple[int, ...] = ()
    chat: ChatTemplate | None = None

    @classmethod
    def of(
        cls, files: Mapping[str, bytes], begin: Sequence[int] = (), ends: Sequence[int] = ()
    ) -> Language:
        """From a tokenizer's files, name -> content."""
        tokenizer = Tokenizer.from_str(files["tokenizer.json"].decode())
        return cls(tokenizer, tuple(begin), tuple(ends), ChatTemplate.of(files))

    def encode(self, text: str) -> list[int]:
        return self.tokenizer.encode(text).ids or list(self.begin)

    def encode_chat(self, messages: Sequence[Message]) -> list[int]:
        """The template writes the special tokens itself; none is added."""
        if self.chat is None:
            raise InputError(
                "this model has no chat template, it only goes on from a text: use "
                "/v1/completions, or serve a model that was trained to chat"
            )
        return self.tokenizer.encode(self.chat.render(messages), add_special_tokens=False).ids

    def decode(self, tokens: Sequence[int]) -> str:
        return self.tokenizer.decode(list(tokens))

    def piece(self, before: int, token: int) -> str:
        """A token's own text after the token `before`: its space is often seen only so."""
        known = self.decode([before])
        return self.decode([before, token])[len(known) :]
