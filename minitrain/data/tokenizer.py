"""Byte-level byte-pair encoding: any text in, token ids out, and the same text back.

Training merges the most frequent pair of adjacent tokens until the vocabulary is full; it starts
from the 256 bytes, so nothing is ever out of vocabulary. Encoding is a deterministic, reversible
function of the text: hence the entropy of a document is the entropy of its tokens.
Paper: Sennrich et al. 2016 (1508.07909); bytes as the alphabet: GPT-2. Lab: e01.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from operator import index
from pathlib import Path

from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models, pre_tokenizers, trainers

from minitrain.errors import InputError, check_list

END = "<|end|>"
SMALLEST = 257  # the 256 bytes and the end of a document
NOT_UTF8 = re.compile("([\ud800-\udfff])")  # lone surrogates: bytes that are not UTF-8


class Tokenizer:
    """Text to ids and back. `end_token` closes a document; `encode` never adds it.

    The literal "<|end|>" in a text is ordinary text, and never becomes the end token.
    """

    def __init__(self, backend: Backend) -> None:
        if backend.token_to_id(END) is None:
            raise InputError(f"this tokenizer has no {END} token: train one with train_tokenizer")
        self.backend = backend
        self.backend.encode_special_tokens = True
        self.backend.no_padding()  # drops padding saved with the file
        self.backend.no_truncation()

    @property
    def end_token(self) -> int:
        return self.backend.token_to_id(END)

    @property
    def vocab_size(self) -> int:
        return self.backend.get_vocab_size()

    def encode(self, text: str) -> list[int]:
        """Text to token ids, without the end token."""
        if not NOT_UTF8.search(text):
            return self.backend.encode(text).ids
        return self.encode_bytes(_raw(text))

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """Many texts at once, on all cores."""
        check_list("texts", texts)
        texts = list(texts)  # read twice
        if any(NOT_UTF8.search(text) for text in texts):
            return [self.encode(text) for text in texts]
        return [encoding.ids for encoding in self.backend.encode_batch_fast(texts)]

    def encode_bytes(self, data: bytes) -> list[int]:
        """Any bytes at all: those that are not UTF-8 become their own byte tokens."""
        ids: list[int] = []
        for piece in NOT_UTF8.split(data.decode("utf-8", "surrogateescape")):
            if NOT_UTF8.match(piece):
                byte = piece.encode("utf-8", "surrogateescape")[0]
                ids.append(self.backend.token_to_id(byte_to_character()[byte]))
            else:
                ids += self.backend.encode(piece).ids
        return ids

    def decode(self, ids: Sequence[int]) -> str:
        """Token ids to text; a character that the ids cut in two is shown as �."""
        return self.decode_bytes(ids).decode("utf-8", "replace")

    def decode_bytes(self, ids: Sequence[int]) -> bytes:
        """Token ids to the exact bytes; the end token gives no bytes."""
        byte_of = {character: byte for byte, character in byte_to_character().items()}
        written = "".join(self._written(i) for i in map(index, ids) if i != self.end_token)
        return bytes(byte_of[character] for character in written)

    def _written(self, token: int) -> str:
        written = self.backend.id_to_token(token) if token >= 0 else None
        if written is None:
            raise InputError(f"token {token} is not in this vocabulary of {self.vocab_size}")
        return written

    def save(self, path: str | os.PathLike) -> Path:
        """Writes one JSON file in the format of Hugging Face's `tokenizer.json`."""
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        self.backend.save(str(path))
        return Path(path)

    @staticmethod
    def load(path: str | os.PathLike) -> Tokenizer:
        """Reads a file written by `save`."""
        if not Path(path).is_file():
            raise InputError(f"there is no tokenizer at {path}: save one with tokenizer.save(path)")
        try:
            return Tokenizer(Backend.from_file(str(path)))
        except InputError:
            raise
        except Exception as error:  # the backend raises bare Exception for every broken file
            raise InputError(f"{path} is not a tokenizer file ({error}): save it again") from error

    def __reduce__(self) -> tuple:
        return _from_json, (self.backend.to_str(),)

    def __repr__(self) -> str:
        return f"Tokenizer(vocab_size={self.vocab_size})"


def train_tokenizer(texts: Iterable[str], vocab_size: int = 512) -> Tokenizer:
    """Learns the merges from `texts`; the same texts give the same tokenizer, bit for bit."""
    check_list("texts", texts)
    if vocab_size < SMALLEST:
        raise InputError(
            f"a vocabulary of {vocab_size} is too small: byte-level BPE needs at least {SMALLEST}"
        )
    backend = Backend(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size, special_tokens=[END], initial_alphabet=alphabet, show_progress=False
    )
    whole = (text.encode("utf-8", "ignore").decode() for text in texts)  # no lone surrogates
    backend.train_from_iterator(whole, trainer)
    return Tokenizer(backend)


def _raw(text: str) -> bytes:
    """The bytes of a text with lone surrogates: the original bytes if it was decoded from some."""
    try:
        return text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return text.encode("utf-8", "surrogatepass")


def _from_json(text: str) -> Tokenizer:
    return Tokenizer(Backend.from_str(text))


def byte_to_character() -> dict[int, str]:
    """GPT-2's printable character for each byte: itself if printable, else U+0100 and up."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    themselves = {byte: chr(byte) for byte in printable}
    return themselves | {byte: chr(0x100 + i) for i, byte in enumerate(others)}
