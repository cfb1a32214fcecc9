"""Rows to train on, cut from token files where they lie: for `Loader`, on any number of ranks.

    rows = TokenRows(folder, length=2048)
    loader = Loader(rows, batch_size=8, rank=rank, world_size=4, workers=2)

Row i is what `pack_stream` would put there, bit for bit: all documents end to end, cut every
`length` tokens, no target across a document's end. Only the rows that are asked for are read, and
the pages stay the system's to keep or to drop: a corpus may be larger than memory.
Shapes: N rows  T tokens.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from minitrain.data.packing import IGNORED, PADDING, Packed
from minitrain.data.stream.token_files import open_shard, read_index
from minitrain.errors import InputError


class TokenRows:
    """`len(rows)`, and `rows[indices] -> Packed`, like a `Packed` that never was in memory."""

    def __init__(self, folder: str | Path, length: int) -> None:
        if length < 1:
            raise InputError(f"rows of {length} tokens hold nothing: give a length of 1 or more")
        self.folder, self.length = Path(folder), length
        self.index = read_index(self.folder)
        if not self.index.tokens:
            raise InputError(f"{folder} holds no tokens: prepare at least one document")
        shards = self.index.shards
        self.shards = [open_shard(self.folder, shard) for shard in shards]
        self.starts = [0, *accumulate(shard.tokens for shard in shards)]
        self.documents_before = [0, *accumulate(shard.documents for shard in shards)]

    def __len__(self) -> int:
        return -(-self.index.tokens // self.length)

    def __getitem__(self, rows: Tensor | Sequence[int] | slice) -> Packed:
        """(N, T) each, as in `Packed`."""
        count = len(self)
        if isinstance(rows, slice):
            rows = range(count)[rows]
        wanted = [int(row) for row in rows]
        for row in wanted:
            if not -count <= row < count:
                raise IndexError(f"row {row} of {count}")
        pieces = [self._row(row % count) for row in wanted]
        shape = (len(pieces), self.length)
        tokens, targets, owners = (
            np.array([piece[part] for piece in pieces], np.int32).reshape(shape)
            for part in range(3)
        )
        return Packed(*(torch.from_numpy(array) for array in (tokens, targets, owners)))

    def _row(self, row: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        start = row * self.length
        stop = min(start + self.length, self.index.tokens)
        tokens = np.full(self.length, self.index.end_token, np.int32)
        targets = np.full(self.length, IGNORED, np.int32)
        owners = np.full(self.length, PADDING, np.int32)
        targets[: stop - start] = self._read(start, stop)
        tokens[1 : stop - start] = targets[: stop - start - 1]
        if start:  # at 0 the first document begins, which follows an end
            tokens[0] = self._read(start - 1, start)[0]
        owners[: stop - start] = self._owners(start, stop)
        return tokens, targets, owners

    def _read(self, start: int, stop: int) -> np.ndarray:
        """(stop - start,) tokens as they lie on disk, from one shard or several."""
        parts = [self.shards[number][0][low:high] for number, low, high in self._spans(start, stop)]
        return np.concatenate(parts)

    def _owners(self, start: int, stop: int) -> np.ndarray:
        """(stop - start,) whose token each is, counted over all shards."""
        parts = []
        for number, low, high in self._spans(start, stop):
            stops = self.shards[number][1]
            first = int(np.searchsorted(stops, low, side="right"))
            last = int(np.searchsorted(stops, high, side="left"))
            ends = np.clip(stops[first : last + 1], low, high)
            own = np.arange(first, first + len(ends)) + self.documents_before[number]
            parts.append(np.repeat(own, np.diff(ends, prepend=low)))
        return np.concatenate(parts)

    def _spans(self, start: int, stop: int) -> list[tuple[int, int, int]]:
        """(shard, start in it, stop in it), for all that [start, stop) touches."""
        spans = []
        number = bisect_right(self.starts, start) - 1
        while start < stop:
            high = min(stop, self.starts[number + 1])
            if start < high:
                spans.append((number, start - self.starts[number], high - self.starts[number]))
            start, number = high, number + 1
        return spans

    def __reduce__(self) -> tuple:
        """A process of its own opens the files itself, instead of being sent their content."""
        return TokenRows, (self.folder, self.length)
