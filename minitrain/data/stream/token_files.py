"""Documents' tokens on disk, in shards that are mapped into memory and never loaded.

    tokens-00000.npy   d0 end d1 end …           uint16, or uint32 for more than 65,536 tokens
    stops-00000.npy    where each document of the shard ends, its end token included, int64
    index.json         the shards: how many tokens and documents, the SHA-256 of each file

Documents are whole: none reaches into the next shard. The index is written last, in one step: a
folder that has it is complete. NumPy's own format, so that `np.load(file, mmap_mode="r")` opens a
shard anywhere. Cost: 2 bytes a token on disk; of memory, what is read.
"""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import chain
from pathlib import Path

import numpy as np

from minitrain.data.packing import token_array
from minitrain.errors import InputError
from minitrain.paths import write_atomically, write_bytes_atomically

INDEX, FORMAT = "index.json", "minitrain tokens, version 1"


@dataclass(frozen=True)
class Shard:
    """One pair of files."""

    name: str  # 00000
    tokens: int
    documents: int
    tokens_sha256: str
    stops_sha256: str


@dataclass(frozen=True)
class TokenIndex:
    """The contents of `index.json`."""

    vocab_size: int
    end_token: int
    shards: tuple[Shard, ...]

    @property
    def tokens(self) -> int:
        return sum(shard.tokens for shard in self.shards)

    @property
    def documents(self) -> int:
        return sum(shard.documents for shard in self.shards)


def write_token_files(
    folder: Path,
    documents: Iterable[Sequence[int]],
    vocab_size: int,
    end_token: int = 0,
    shard_tokens: int = 1 << 26,
) -> TokenIndex:
    """Writes shards of about `shard_tokens` and the index; `documents` are without the end token.

    Read once, one shard in memory at a time. InputError for a token outside the vocabulary.
    """
    if (folder / INDEX).exists():
        raise InputError(f"{folder} holds token files already: give another folder")
    shards = [
        write_shard(folder, number, group, vocab_size, end_token)
        for number, group in enumerate(shard_groups(documents, shard_tokens))
    ]
    return write_index(folder, TokenIndex(vocab_size, end_token, tuple(shards)))


def write_shard(
    folder: Path, number: int, documents: Sequence[Sequence[int]], vocab_size: int, end_token: int
) -> Shard:
    """One shard's two files, each written beside its place and moved there."""
    if not 0 <= end_token < vocab_size:
        raise InputError(f"end token {end_token}: use one of the vocabulary, 0 to {vocab_size - 1}")
    sizes = np.array([len(document) + 1 for document in documents], np.int64)
    end = np.array([end_token])
    pieces = (
        (token_array(document, f"document {n}", np.int64), end)
        for n, document in enumerate(documents)
    )
    tokens = np.concatenate([np.empty(0, np.int64), *chain.from_iterable(pieces)])
    if len(tokens) and not 0 <= tokens.min() <= tokens.max() < vocab_size:
        raise InputError(
            f"tokens reach from {tokens.min()} to {tokens.max()}, and the vocabulary has "
            f"{vocab_size:,}: encode with the tokenizer that it is of"
        )
    narrow = tokens.astype(np.uint16 if vocab_size <= 1 << 16 else np.uint32)
    name = f"{number:05d}"
    sums = [_write(_tokens_file(folder, name), narrow)]
    sums.append(_write(_stops_file(folder, name), np.cumsum(sizes)))
    return Shard(name, len(tokens), len(documents), *sums)


def write_index(folder: Path, index: TokenIndex) -> TokenIndex:
    """The last file: from now on the folder is complete."""
    text = json.dumps({"format": FORMAT, **asdict(index)}, indent=2)
    write_atomically(folder / INDEX, text + "\n")
    return index


def holds_tokens(folder: Path) -> bool:
    """True if `data prepare` has finished in the folder, or is working there: no folder
    of texts."""
    if (folder / "work" / "settings.json").is_file():
        return True
    return (folder / INDEX).is_file() and FORMAT.encode() in (folder / INDEX).read_bytes()[:99]


def read_index(folder: Path) -> TokenIndex:
    """InputError where there is none, or one that says something else."""
    file = Path(folder) / INDEX
    if not file.is_file():
        raise InputError(
            f"{folder} holds no {INDEX}: give a folder that `minitrain data prepare` finished, "
            "or run it again, and it goes on where it stopped"
        )
    try:
        read = json.loads(file.read_text(encoding="utf-8"))
        shards = tuple(Shard(**shard) for shard in read["shards"])
        if read["format"] != FORMAT:
            raise ValueError(f"its format is {read['format']!r}, and {FORMAT!r} can be read")
        return TokenIndex(read["vocab_size"], read["end_token"], shards)
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(f"{file} is no index of token files ({error}): prepare anew") from error


def open_shard(folder: Path, shard: Shard) -> tuple[np.ndarray, np.ndarray]:
    """The tokens and stops of a shard, memory-mapped, their sizes checked."""
    files = _tokens_file(folder, shard.name), _stops_file(folder, shard.name)
    try:
        tokens, stops = (np.load(file, mmap_mode="r", allow_pickle=False) for file in files)
    except (OSError, ValueError) as error:
        raise InputError(f"shard {shard.name} cannot be read ({error}): prepare anew") from error
    if (len(tokens), len(stops)) != (shard.tokens, shard.documents):
        raise InputError(
            f"{files[0]} has {len(tokens):,} tokens of {len(stops):,} documents, and the index "
            f"says {shard.tokens:,} of {shard.documents:,}: prepare anew"
        )
    return np.asarray(tokens), np.asarray(stops)  # the same pages; a memmap's slices are slow


def verify_token_files(folder: Path) -> TokenIndex:
    """Reads every byte; InputError for the first file that is not what the index says."""
    index = read_index(folder)
    for shard in index.shards:
        for file, expected in (
            (_tokens_file(folder, shard.name), shard.tokens_sha256),
            (_stops_file(folder, shard.name), shard.stops_sha256),
        ):
            if not file.is_file() or _sha256(file) != expected:
                raise InputError(f"{file} is missing or not as it was written: prepare anew")
    return index


def shard_groups(documents: Iterable[Sequence[int]], most: int) -> Iterator[list[Sequence[int]]]:
    """Whole documents, as many as `most` tokens have room for, and at least one."""
    if most < 1:
        raise InputError(f"shards of {most} tokens: use 1 or more")
    group: list[Sequence[int]] = []
    size = 0
    for document in documents:
        if group and size + len(document) + 1 > most:
            yield group
            group, size = [], 0
        group.append(document)
        size += len(document) + 1
    if group:
        yield group


def _write(file: Path, array: np.ndarray) -> str:
    data = io.BytesIO()
    np.save(data, array.astype(array.dtype.newbyteorder("<")), allow_pickle=False)
    write_bytes_atomically(file, data.getvalue())
    return hashlib.sha256(data.getvalue()).hexdigest()


def _sha256(file: Path) -> str:
    digest = hashlib.sha256()
    with file.open("rb") as data:
        while block := data.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def _tokens_file(folder: Path, name: str) -> Path:
    return Path(folder) / f"tokens-{name}.npy"


def _stops_file(folder: Path, name: str) -> Path:
    return Path(folder) / f"stops-{name}.npy"
