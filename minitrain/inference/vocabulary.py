"""A vocabulary's tokens one by one: their bytes, and the special ones, which add no text."""

from __future__ import annotations

import re
from collections.abc import Sequence

from tokenizers import Tokenizer

from minitrain.data.tokenizer import byte_to_character
from minitrain.errors import InputError
from minitrain.inference.streaming import HALF

BYTE = re.compile("<0x([0-9A-F]{2})>")  # SentencePiece's name for a byte


class Vocabulary:
    """Token bytes and names. Each is decoded after another token, which preserves its space."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        added = tokenizer.get_added_tokens_decoder()
        self.special = {one.content: id for id, one in added.items() if one.special and one.content}
        self.tokenizer = tokenizer
        self.before = tokenizer.encode("a", add_special_tokens=False).ids[-1:]
        self.byte_of = {character: byte for byte, character in byte_to_character().items()}

    def bytes_of(self, token: int) -> bytes:
        """The bytes that a token adds to a text, even half a character's; none if special."""
        known = self.tokenizer.decode(self.before)
        text = self.tokenizer.decode([*self.before, token])[len(known) :]
        if HALF not in text:
            return text.encode()
        name = self.tokenizer.id_to_token(token)
        if found := BYTE.fullmatch(name):
            return bytes.fromhex(found[1])
        values = [self.byte_of.get(character) for character in name]
        return text.encode() if None in values else bytes(values)

    def spelt(self, token: int) -> tuple[str, bytes]:
        """A token's text, or its name if it adds no text, and its bytes."""
        if data := self.bytes_of(token):
            return data.decode(errors="replace"), data
        name = self.tokenizer.id_to_token(token) or id_name(token)
        return name, name.encode()

    def stop_tokens(self, stop: Sequence[str]) -> tuple[int, ...]:
        """The special tokens among the stop strings; InputError if only part of a string is one."""
        for string in stop:
            for name in self.special:
                if name in string and string not in self.special:
                    raise InputError(
                        f"the stop string {string!r:.60} holds {name!r}, a special token, which no "
                        "text shows: stop at the token alone, or at the words around it"
                    )
        return tuple(self.special[string] for string in stop if string in self.special)


def id_name(token: int) -> str:
    """vLLM's name of a token id."""
    return f"token_id:{token}"
