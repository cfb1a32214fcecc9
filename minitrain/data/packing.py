"""Packs documents of many lengths into rows of one length, so that no compute goes to padding.

A document is the input [end] t0 t1 … tn with targets t0 t1 … tn [end], so each of its tokens, the
end included, is predicted exactly once: a loss per token can be compared with the corpus's entropy
per token. Attention stays inside a document; padding has no targets.

    tokens     end a0 a1 end b0 b1 b2 end pad pad
    targets     a0 a1 end b0 b1 b2 end  -   -   -    -100: never the next document's first token
    documents   0  0  0   1  1  1  1  -1  -1  -1     -1: padding
    positions   0  1  2   0  1  2  3   0   1   2     restart with each document

`pack` keeps short documents whole (best fit, decreasing: Ding et al. 2024, 2404.10830) and cuts
longer ones; `pack_stream` fills every row and cuts where it must. Cost: O(documents + tokens).
Shapes: N rows  T tokens. Lab: e11.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from minitrain.errors import InputError, check_whole

PADDING = -1  # the document id of padding
IGNORED = -100  # the target that cross-entropy skips


@dataclass(frozen=True)
class Packed:
    """Training rows, all (N, T) int32; `documents[n, t]` is the document of that token."""

    tokens: Tensor
    targets: Tensor
    documents: Tensor

    def __len__(self) -> int:
        return self.tokens.shape[0]

    @property
    def length(self) -> int:
        return self.tokens.shape[1]

    @property
    def valid(self) -> Tensor:
        """(N, T) bool: True where there is a target."""
        return self.targets != IGNORED

    @property
    def fill(self) -> float:
        """The fraction of positions that are not padding."""
        return self.valid.float().mean().item()

    def positions(self) -> Tensor:
        """(N, T) int64: 0, 1, 2, … from the start of each document in a row."""
        documents = self.documents.numpy()
        begins = np.ones(documents.shape, bool)  # a row also begins one
        np.not_equal(documents[:, 1:], documents[:, :-1], out=begins[:, 1:])
        starts = np.flatnonzero(begins)
        sizes = np.diff(starts, append=documents.size)
        positions = np.arange(documents.size) - np.repeat(starts, sizes)
        return torch.from_numpy(positions.reshape(documents.shape))

    def __getitem__(self, rows: Tensor | Sequence[int] | slice) -> Packed:
        """Selects rows."""
        if not isinstance(rows, slice):
            rows = torch.from_numpy(row_numbers(rows, len(self)))
        return Packed(self.tokens[rows], self.targets[rows], self.documents[rows])


class Rows(Protocol):
    """A source of rows for a loader: a `Packed` itself, `TokenRows`, `JoinedRows`."""

    def __len__(self) -> int: ...

    def __getitem__(self, rows: Tensor | Sequence[int] | slice) -> Packed: ...


def row_numbers(rows: Tensor | Sequence[int] | slice, count: int) -> np.ndarray:
    """(N,) int64: the selected rows of `count`, indexed as a tensor is: by numbers (negative ones
    count from the end), by a slice, or by a mask (count,) of bool."""
    if isinstance(rows, slice):
        return np.arange(*rows.indices(count))
    wanted = np.asarray(rows)
    if wanted.dtype == bool and wanted.shape == (count,):
        return np.flatnonzero(wanted)
    if wanted.ndim != 1 or (wanted.size and wanted.dtype.kind not in "iu"):
        raise InputError(
            f"rows are asked for by {wanted.dtype} of shape {wanted.shape}: give whole numbers "
            f"(N,), a slice, or a mask ({count},) of bool"
        )
    wanted = wanted.astype(np.int64)
    if (odd := wanted[(wanted < -count) | (wanted >= count)]).size:
        raise IndexError(f"row {odd[0]} of {count}")
    return wanted % count if count else wanted


def pack(documents: Sequence[Sequence[int]], length: int, end_token: int = 0) -> Packed:
    """Packs whole documents best-fit into rows of `length`; longer ones are cut.

    `documents` are token ids without the end token; one of n tokens takes n + 1 positions.
    """
    sizes = _sizes(documents, length)
    pieces = [
        (index, start, min(start + length, size))
        for index, size in enumerate(sizes)
        for start in range(0, size, length)
    ]
    rows = _best_fit([stop - start for _, start, stop in pieces], length)
    return _lay_out(documents, [[pieces[i] for i in row] for row in rows], length, end_token)


def pack_stream(documents: Sequence[Sequence[int]], length: int, end_token: int = 0) -> Packed:
    """Joins all documents and cuts every `length` tokens: full rows, split documents."""
    rows: list[list[tuple[int, int, int]]] = [[]]
    room = length
    for index, size in enumerate(_sizes(documents, length)):
        start = 0
        while start < size:
            if room == 0:
                rows.append([])
                room = length
            stop = min(start + room, size)
            rows[-1].append((index, start, stop))
            room -= stop - start
            start = stop
    return _lay_out(documents, rows, length, end_token)


def _sizes(documents: Sequence[Sequence[int]], length: int) -> list[int]:
    check_whole("length", length)
    if not len(documents):
        raise InputError("there is no document to pack: give at least one")
    return [len(document) + 1 for document in documents]


def _best_fit(sizes: Sequence[int], length: int) -> list[list[int]]:
    """Longest first, each into the fullest row that still has room for it.

    Bit r of `rooms` is set if some row has exactly r positions left: the best fit is the lowest set
    bit from `size` up, found in one step.
    """
    rows: list[list[int]] = []
    rows_by_room: list[list[int]] = [[] for _ in range(length + 1)]
    rooms = 0
    for item in sorted(range(len(sizes)), key=sizes.__getitem__, reverse=True):
        size = sizes[item]
        fitting = rooms >> size
        if not fitting:
            rows.append([])
            row, room = len(rows) - 1, length
        else:
            room = size + (fitting & -fitting).bit_length() - 1
            row = rows_by_room[room].pop()
            if not rows_by_room[room]:
                rooms &= ~(1 << room)
        rows[row].append(item)
        rows_by_room[room - size].append(row)
        rooms |= 1 << (room - size)
    return rows


def _lay_out(
    documents: Sequence[Sequence[int]],
    rows: list[list[tuple[int, int, int]]],
    length: int,
    end_token: int,
) -> Packed:
    """Write the pieces (document, start, stop) of each row side by side."""
    stream, first = _stream(documents, end_token)
    tokens = np.full((len(rows), length), end_token, dtype=np.int32)
    targets = np.full((len(rows), length), IGNORED, dtype=np.int32)
    owners = np.full((len(rows), length), PADDING, dtype=np.int32)
    for row, pieces in enumerate(rows):
        at = 0
        for index, start, stop in pieces:
            to, begin = at + stop - start, first[index] + start
            tokens[row, at:to] = stream[begin : begin + to - at]
            targets[row, at:to] = stream[begin + 1 : begin + 1 + to - at]
            owners[row, at:to] = index
            at = to
    return Packed(*(torch.from_numpy(array) for array in (tokens, targets, owners)))


def _stream(documents: Sequence[Sequence[int]], end_token: int) -> tuple[np.ndarray, list[int]]:
    """end d0 end d1 end … dn end, and the index of the end token before each document."""
    end = token_array([end_token], "the end token", np.int32)
    pieces = [end]
    for number, document in enumerate(documents):
        pieces += [token_array(document, f"document {number}", np.int32), end]
    return np.concatenate(pieces), [0, *accumulate(len(document) + 1 for document in documents)]


def token_array(tokens: Sequence[int], name: str, dtype: type) -> np.ndarray:
    """Token ids as an array (T,); InputError for fractions, strings or negative numbers."""
    array = np.asarray(tokens)
    whole = array.ndim == 1 and (array.dtype.kind in "iu" or not array.size)
    if not whole or (array.size and not 0 <= array.min() <= array.max() <= np.iinfo(dtype).max):
        raise InputError(
            f"{name} is {tokens!r:.60}: give a list of token ids, whole numbers from 0 up, "
            "tokenizer.encode(text)"
        )
    return array.astype(dtype)
