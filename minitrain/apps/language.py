"""A model's tokenizer with its chat template, for commands that generate text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from tokenizers import Tokenizer

from minitrain.apps.chat import ChatTemplate, Message
from minitrain.apps.models import open_model
from minitrain.errors import InputError
from minitrain.inference.vocabulary import Vocabulary
from minitrain.model.hub.text import encode, open_tokenizer

if TYPE_CHECKING:
    from minitrain.model.transformer import Transformer


@dataclass(frozen=True)
class Language:
    """An answer stops before any token in `ends`; an empty prompt becomes `begin`."""

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
                "this model has no chat template, it only completes text: use /v1/completions, or "
                "serve a model that was trained to chat"
            )
        return encode(self.tokenizer, self.chat.render(messages), add_special_tokens=False)

    def decode(self, tokens: Sequence[int]) -> str:
        return self.tokenizer.decode(list(tokens))


def open_with_language(name: str, device: str | None) -> tuple[Transformer, Language]:
    """Opens any model that the other commands open; in float32 on a CPU, where it is fast."""
    import torch

    from minitrain.apps.train.setup import find_device

    place = find_device(device)
    model, text = open_model(name, place, torch.float32 if place.type == "cpu" else None)
    begin = text.bos_id if text.bos_id is not None else next(iter(text.eos_ids), None)
    return model, Language.of(text.tokenizer, () if begin is None else (begin,), text.eos_ids)
