"""llama2.c's checkpoints: a Transformer and its tokenizer in two small binary files.

    model.bin       7 int32 (D, F, L, H, K, ±V, T; V < 0: the head is not tied), then every weight
                    as float32: embedding, then each kind of matrix for all layers, last norm
    tokenizer.bin   int32 longest piece; for each token float32 score, int32 size, its bytes

Its RoPE is interleaved, so the rows of q and k are reordered on reading. Text is encoded as in
SentencePiece: it starts from characters and repeatedly merges the adjacent pair whose union has the
best score, until no union is a token. Karpathy, github.com/karpathy/llama2.c. Lab: e01.
"""

from __future__ import annotations

import os
import struct
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, normalizers, processors
from torch import Tensor

from minitrain.errors import InputError
from minitrain.model.config import ModelConfig
from minitrain.model.hub.text import TextFiles, fast_tokenizer
from minitrain.model.rope import interleaved_to_half_split
from minitrain.model.transformer import Transformer, empty

BLANK = "\u2581"  # SentencePiece's symbol for a space
HEADER = struct.Struct("<7i")
PIECE = struct.Struct("<fi")  # score, size
FIRST_BYTE = 3  # tokens 3 to 258 are the 256 bytes, for characters outside the vocabulary
KINDS = (  # in file order
    "attention_norm",
    "attention.q",
    "attention.k",
    "attention.v",
    "attention.o",
    "mlp_norm",
    "mlp.gate",
    "mlp.down",
    "mlp.up",
)


@dataclass(frozen=True)
class Llama2cTokenizer:
    """Text <-> token ids. A text begins with `bos_id`; the model writes bos or eos at its end."""

    pieces: tuple[bytes, ...] = field(repr=False)
    scores: tuple[float, ...] = field(repr=False)
    bos_id: int = 1
    eos_id: int = 2

    @property
    def vocab_size(self) -> int:
        return len(self.pieces)

    @cached_property
    def backend(self) -> Tokenizer:
        """The same tokenizer in Hugging Face's form: every split of a piece in two is a merge, and
        better scores come first. Among equal pieces the last wins: a letter takes precedence over
        its byte token."""
        names = [_name(number, piece) for number, piece in enumerate(self.pieces)]
        vocabulary = {name: number for number, name in enumerate(names)}
        merges = []
        for number in range(FIRST_BYTE + 256, len(names)):
            name = names[number]
            pairs = [(name[:cut], name[cut:]) for cut in range(1, len(name))]
            known = [pair for pair in pairs if vocabulary.keys() >= set(pair)]
            known.sort(key=lambda pair: (vocabulary[pair[0]], vocabulary[pair[1]]))
            merges += [(-self.scores[number], pair) for pair in known]
        merges.sort(key=lambda merge: merge[0])  # stable: equal scores keep their order
        pairs = [pair for _, pair in merges]
        backend = Tokenizer(models.BPE(vocabulary, pairs, unk_token=names[0], byte_fallback=True))
        backend.normalizer = normalizers.Sequence(
            [normalizers.Prepend(BLANK), normalizers.Replace(" ", BLANK)]
        )
        steps = [decoders.Replace(BLANK, " "), decoders.ByteFallback(), decoders.Fuse()]
        backend.decoder = decoders.Sequence([*steps, decoders.Strip(" ", 1, 0)])
        bos = (names[self.bos_id], self.bos_id)
        backend.post_processor = processors.TemplateProcessing(
            single=f"{bos[0]} $A", special_tokens=[bos]
        )
        return backend

    def encode(self, text: str) -> list[int]:
        """-> bos, then the text's tokens. A character without a token becomes byte tokens."""
        return self.backend.encode(text).ids

    def decode(self, tokens: list[int]) -> str:
        """Tokens to text, without bos, eos and the space before the first word."""
        data = b""
        for token in tokens:
            if token in (self.bos_id, self.eos_id):
                continue
            is_byte = FIRST_BYTE <= token < FIRST_BYTE + 256
            data += bytes([token - FIRST_BYTE]) if is_byte else self.pieces[token]
        text = data.decode(errors="replace")
        return text.removeprefix(" ") if tokens and tokens[0] == self.bos_id else text


def text_files(tokenizer: Llama2cTokenizer) -> TextFiles:
    """The tokenizer's files, for readers of `tokenizer.json`."""
    special = {"unk_token": "<unk>", "bos_token": "<s>", "eos_token": "</s>"}
    files = fast_tokenizer(tokenizer.backend.to_str(), special)
    return TextFiles(files, tokenizer.bos_id, (tokenizer.eos_id, tokenizer.bos_id))


def _name(number: int, piece: bytes) -> str:
    """SentencePiece's name of a token."""
    if number < FIRST_BYTE:
        return ("<unk>", "<s>", "</s>")[number]
    if number < FIRST_BYTE + 256:
        return f"<0x{number - FIRST_BYTE:02X}>"
    return piece.decode(errors="replace").replace(" ", BLANK)


def find_llama2c(path: Path) -> Path | None:
    """`path` itself, or the model.bin in a folder; None for other kinds of checkpoints."""
    found = path / "model.bin" if path.is_dir() else path
    return found if found.name == "model.bin" and found.is_file() else None


def load_llama2c(path: str | os.PathLike) -> tuple[Transformer, Llama2cTokenizer]:
    """model.bin with tokenizer.bin beside it, or the folder of both -> float32 model, tokenizer."""
    path = Path(path)
    path = path / "model.bin" if path.is_dir() else path
    data = _read(path)
    config = _config(path, data)
    tokenizer = read_tokenizer(path.with_name("tokenizer.bin"), config.vocab_size)
    model = empty(config)
    _fill(model, torch.frombuffer(bytearray(data), dtype=torch.float32, offset=HEADER.size))
    return model, tokenizer


def _config(path: Path, data: bytes) -> ModelConfig:
    """Reads the header; checks it against the file's size."""
    if len(data) < HEADER.size:
        raise InputError(f"{path} has {len(data)} bytes, too few for a model: download it again")
    width, ffn, layers, heads, kv_heads, vocab, length = HEADER.unpack_from(data)
    try:
        config = ModelConfig(
            abs(vocab), width, layers, heads, kv_heads, ffn, max_length=length, tied=vocab > 0
        )
    except InputError as error:
        raise InputError(
            f"{path} is not a model.bin in llama2.c's first format ({error}): "
            "export it with `export.py --version 0`"
        ) from error
    parameters = sum(p.numel() for p in empty(config, "meta").parameters())
    needed = HEADER.size + 4 * (parameters + _rope_table(config))
    if len(data) != needed:
        raise InputError(
            f"{path} has {len(data):,} bytes, and its header asks for {needed:,}: download it again"
        )
    return config


def _rope_table(config: ModelConfig) -> int:
    """Numbers between the last norm and the head: cos and sin of each position, unused here."""
    return config.max_length * config.head_size


@torch.no_grad()
def _fill(model: Transformer, weights: Tensor) -> None:
    """Copies weights, flat, in llama2.c's order, into the model."""
    config, parameters = model.config, dict(model.named_parameters())
    layers = [f"blocks.{i}.{kind}.weight" for kind in KINDS for i in range(config.layers)]
    at = 0
    for name in ("embed.weight", *layers, "norm.weight", "head.weight"):
        if name == "head.weight":
            at += _rope_table(config)
        if name not in parameters:  # a tied head
            continue
        parameter = parameters[name]
        weight = weights[at : at + parameter.numel()].view_as(parameter)
        if name.endswith(".q.weight"):
            weight = interleaved_to_half_split(weight, config.heads)
        if name.endswith(".k.weight"):
            weight = interleaved_to_half_split(weight, config.kv_heads)
        parameter.copy_(weight)
        at += parameter.numel()


def read_tokenizer(path: Path, vocab_size: int) -> Llama2cTokenizer:
    """tokenizer.bin, which does not store its number of tokens."""
    data, at = _read(path), 4  # skips the longest piece's length
    pieces, scores = [], []
    try:
        for _ in range(vocab_size):
            score, size = PIECE.unpack_from(data, at)
            at += PIECE.size + size
            if size < 0 or at > len(data):
                raise struct.error(f"a piece of {size} bytes ends behind the file")
            pieces.append(data[at - size : at])
            scores.append(score)
    except struct.error as error:
        raise InputError(
            f"{path} is not a tokenizer.bin with {vocab_size} tokens ({error}): "
            "take the one that came with model.bin"
        ) from error
    return Llama2cTokenizer(tuple(pieces), tuple(scores))


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise InputError(
            f"{path} cannot be read ({error.strerror}): "
            "give the folder that holds model.bin and tokenizer.bin"
        ) from error
