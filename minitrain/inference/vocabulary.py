"""A vocabulary's tokens one by one: their bytes, and the special ones, which are in no text."""

from __future__ import annotations

import re
from collections.abc import Sequence

from tokenizers import Tokenizer

from minitrain.data.tokenizer import byte_to_character
from minitrain.errors import InputError
from minitrain.inference.streaming import HALF

BYTE = re.compile("<0x([0-9A-F]{2})>")  # SentencePiece's name for one


class Vocabulary:
    """Each token is decoded behind another: its space is seen only so."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        added = tokenizer.get_added_tokens_decoder()
        self.special = {one.content: id for id, one in added.items() if one.special and one.content}
        self.tokenizer = tokenizer
        self.before = tokenizer.encode("a", add_special_tokens=False).ids[-1:]
        self.byte_of = {character: byte for byte, character in byte_to_character().items()}

    def bytes_of(self, token: int) -> bytes:
        """Those that it adds to a text; half a character's too, and a special token adds none."""
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
        """Its text, or name where it adds none to a text, and the bytes."""
        if data := self.bytes_of(token):
            return data.decode(errors="replace"), data
        name = self.tokenizer.id_to_token(token) or id_name(token)
        return name, name.encode()

    def stop_tokens(self, stop: Sequence[str]) -> tuple[int, ...]:
        """The special tokens among the stop strings; InputError where one is only a part of one."""
        for string in stop:
            for name in self.special:
                if name in string and string not in self.special:
                    raise InputError(
                        f"the stop string {string!r:.60} holds {name!r}, a special token, which no "
                        "text shows: stop at the token alone, or at the words around it"
                    )
        return tuple(self.special[string] for string in stop if string in self.special)


def id_name(token: int) -> str:
    """As vLLM calls a token by its number."""
    return f"token_id:{token}"
