"""Documents' tokens on disk, in memory-mapped shards.

    tokens-00000.npy   d0 end d1 end …           uint16, or uint32 for more than 65,536 tokens
    stops-00000.npy    the end of each document in the shard, end token included, int64
    index.json         the shards: numbers of tokens and documents, the SHA-256 of each file

Documents are never split across shards. The index is written last, atomically: a folder that has
it is complete. The format is NumPy's own: `np.load(file, mmap_mode="r")` opens a shard anywhere.
Cost: 2 bytes a token on disk; in memory, only what is read.

    rows = TokenRows(folder, length=2048)
    loader = Loader(rows, batch_size=8, rank=rank, world_size=4, workers=2)

Row i is the same as `pack_stream`'s, bit for bit: all documents end to end, cut every `length`
tokens, no target across a document's end. Only the requested rows are read, so a corpus may be
larger than memory. Shapes: N rows  T tokens.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import accumulate
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from minitrain.data.packing import IGNORED, PADDING, Packed, row_numbers, token_array
from minitrain.errors import InputError, check_whole
from minitrain.paths import write_atomically, write_bytes_atomically

INDEX, FORMAT = "index.json", "minitrain tokens, version 1"


@dataclass(frozen=True)
class Shard:
    """One shard: a pair of files."""

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
    folder: str | os.PathLike,
    documents: Iterable[Sequence[int]],
    vocab_size: int,
    end_token: int = 0,
    shard_tokens: int = 1 << 26,
) -> TokenIndex:
    """Writes shards of about `shard_tokens` and the index; `documents` are without the end token.

    Read once, one shard in memory at a time. InputError for a token outside the vocabulary.
    """
    check_whole("vocab_size", vocab_size)
    folder = Path(folder)
    if (folder / INDEX).exists():
        raise InputError(f"{folder} holds token files already: give another folder")
    shards = [
        write_shard(folder, number, group, vocab_size, end_token)
        for number, group in enumerate(shard_groups(documents, shard_tokens))
    ]
    return write_index(folder, TokenIndex(vocab_size, end_token, tuple(shards)))


def shard_groups(documents: Iterable[Sequence[int]], most: int) -> Iterator[list[Sequence[int]]]:
    """Groups whole documents, up to `most` tokens but at least one document each."""
    check_whole("shard_tokens", most)
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


def write_shard(
    folder: Path, number: int, documents: Sequence[Sequence[int]], vocab_size: int, end_token: int
) -> Shard:
    """Writes a shard's two files, each to a temporary name and then moved into place."""
    if not 0 <= end_token < vocab_size:
        raise InputError(f"end token {end_token}: use one of the vocabulary, 0 to {vocab_size - 1}")
    pieces = [np.empty(0, np.int64)]
    for n, document in enumerate(documents):
        pieces += [token_array(document, f"document {n}", np.int64), np.array([end_token])]
    tokens = np.concatenate(pieces)
    if len(tokens) and tokens.max() >= vocab_size:
        raise InputError(
            f"tokens reach up to {tokens.max()}, and the vocabulary has {vocab_size:,}: encode "
            "with the tokenizer that it is of"
        )
    stops = np.cumsum([len(document) + 1 for document in documents], dtype=np.int64)
    narrow = tokens.astype(np.uint16 if vocab_size <= 1 << 16 else np.uint32)
    name = f"{number:05d}"
    sums = [_write(file, own) for file, own in zip(_files(folder, name), (narrow, stops))]
    return Shard(name, len(tokens), len(documents), *sums)


def write_index(folder: Path, index: TokenIndex) -> TokenIndex:
    """Writes the last file, which marks the folder as complete."""
    text = json.dumps({"format": FORMAT, **asdict(index)}, indent=2)
    write_atomically(folder / INDEX, text + "\n")
    return index


def holds_tokens(folder: Path) -> bool:
    """True if `data prepare` has finished in the folder, or is running there."""
    if (folder / "work" / "settings.json").is_file():
        return True
    return (folder / INDEX).is_file() and FORMAT.encode() in (folder / INDEX).read_bytes()[:99]


def read_index(folder: str | os.PathLike) -> TokenIndex:
    """Reads the index; InputError if it is missing or malformed."""
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


def verify_token_files(folder: str | os.PathLike) -> TokenIndex:
    """Reads every byte; InputError for the first file that differs from the index."""
    index = read_index(folder)
    for shard in index.shards:
        sums = (shard.tokens_sha256, shard.stops_sha256)
        for file, expected in zip(_files(folder, shard.name), sums):
            if not file.is_file() or hashlib.sha256(file.read_bytes()).hexdigest() != expected:
                raise InputError(f"{file} is missing or not as it was written: prepare anew")
    return index


class TokenRows:
    """`len(rows)`, and `rows[indices] -> Packed`, like a `Packed` that stays on disk."""

    def __init__(self, folder: str | os.PathLike, length: int) -> None:
        if length < 1:
            raise InputError(f"rows of {length} tokens hold nothing: give a length of 1 or more")
        self.folder, self.length = Path(folder), length
        self.index = read_index(self.folder)
        if not self.index.tokens:
            raise InputError(f"{folder} holds no tokens: prepare at least one document")
        shards = self.index.shards
        self.shards = [_open_shard(self.folder, shard) for shard in shards]
        self.starts = [0, *accumulate(shard.tokens for shard in shards)]
        self.documents_before = [0, *accumulate(shard.documents for shard in shards)]

    def __len__(self) -> int:
        return -(-self.index.tokens // self.length)

    def __getitem__(self, rows: Tensor | Sequence[int] | slice) -> Packed:
        """(N, T) each, as in `Packed`."""
        wanted = row_numbers(rows, len(self)).tolist()
        # Inputs and targets are one token apart; an end token precedes the first document.
        spans = np.full((len(wanted), self.length + 1), self.index.end_token, np.int32)
        owners = np.full((len(wanted), self.length), PADDING, np.int32)
        for place, row in enumerate(wanted):
            start = row * self.length
            stop = min(start + self.length, self.index.tokens)
            tokens, documents = self.read(max(0, start - 1), stop)
            before = len(tokens) - (stop - start)  # 1; 0 in the first row
            spans[place, 1 - before : stop - start + 1] = tokens
            owners[place, : stop - start] = documents[before:]
        targets = np.where(owners == PADDING, np.int32(IGNORED), spans[:, 1:])
        # The last token of all is an end token, as padding's inputs are.
        return Packed(*(torch.from_numpy(array) for array in (spans[:, :-1], targets, owners)))

    def read(self, start: int, stop: int) -> tuple[np.ndarray, np.ndarray]:
        """Tokens `start` to `stop` of the whole corpus, and each one's document number."""
        tokens, owners = [], []
        number = bisect_right(self.starts, start) - 1
        while start < stop:
            own, stops = self.shards[number]
            low, high = start - self.starts[number], min(stop - self.starts[number], len(own))
            first, last = stops.searchsorted((low, high - 1), side="right").tolist()
            ends = np.minimum(stops[first : last + 1], high)
            documents = self.documents_before[number] + np.arange(first, last + 1)
            tokens.append(own[low:high])
            owners.append(np.repeat(documents, np.diff(ends, prepend=low)))
            number, start = number + 1, start + high - low
        if len(tokens) == 1:
            return tokens[0], owners[0]
        return np.concatenate(tokens), np.concatenate(owners)

    def __reduce__(self) -> tuple:
        """Pickles the arguments: a worker process reopens the files rather than copying them."""
        return TokenRows, (self.folder, self.length)


def _open_shard(folder: Path, shard: Shard) -> tuple[np.ndarray, np.ndarray]:
    """The tokens and stops of a shard, memory-mapped, their sizes checked."""
    files = _files(folder, shard.name)
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


def _write(file: Path, array: np.ndarray) -> str:
    data = io.BytesIO()
    np.save(data, array.astype(array.dtype.newbyteorder("<")), allow_pickle=False)
    write_bytes_atomically(file, data.getvalue())
    return hashlib.sha256(data.getvalue()).hexdigest()


def _files(folder: str | os.PathLike, name: str) -> tuple[Path, Path]:
    return Path(folder) / f"tokens-{name}.npy", Path(folder) / f"stops-{name}.npy"
