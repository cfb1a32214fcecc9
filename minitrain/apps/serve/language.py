"""A model's words: text to tokens and back, as the server needs them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from tokenizers import Tokenizer

from minitrain.apps.serve.chat import ChatTemplate, Message
from minitrain.errors import InputError
from minitrain.inference.vocabulary import Vocabulary
from minitrain.model.hub.text import encode, open_tokenizer


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
        """Opens a tokenizer's files, name -> content."""
        return cls(open_tokenizer(files), tuple(begin), tuple(ends), ChatTemplate.of(files))

    @cached_property
    def vocabulary(self) -> Vocabulary:
        return Vocabulary(self.tokenizer)

    def encode(self, text: str) -> list[int]:
        return encode(self.tokenizer, text) or list(self.begin)

    def encode_chat(self, messages: Sequence[Message]) -> list[int]:
        """The template writes the special tokens itself; none is added."""
        if self.chat is None:
            raise InputError(
                "this model has no chat template, it only goes on from a text: use "
                "/v1/completions, or serve a model that was trained to chat"
            )
        return encode(self.tokenizer, self.chat.render(messages), add_special_tokens=False)

    def decode(self, tokens: Sequence[int]) -> str:
        return self.tokenizer.decode(list(tokens))
