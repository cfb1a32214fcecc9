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
        wanted = np.asarray(rows, np.int64).tolist()
        for row in wanted:
            if not -count <= row < count:
                raise IndexError(f"row {row} of {count}")
        shape = (len(wanted), self.length)
        tokens = np.full(shape, self.index.end_token, np.int32)
        targets, owners = np.full(shape, IGNORED, np.int32), np.full(shape, PADDING, np.int32)
        for place, row in enumerate(wanted):
            self._fill(row % count, tokens[place], targets[place], owners[place])
        return Packed(*(torch.from_numpy(array) for array in (tokens, targets, owners)))

    def _fill(self, row: int, tokens: np.ndarray, targets: np.ndarray, owners: np.ndarray) -> None:
        """One row, (T,) each; what lies behind the last token is left as it is."""
        at, start = 0, row * self.length
        for number, low, high in self._spans(start, min(start + self.length, self.index.tokens)):
            own, stops = self.shards[number]
            to = at + high - low
            targets[at:to] = own[low:high]
            first, last = stops.searchsorted((low, high - 1), side="right")
            owner = self.documents_before[number] + first
            owners[at:to] = owner
            for end in stops[first:last].tolist():  # of the documents that are over before `high`
                owner += 1
                owners[at + end - low : to] = owner
            at = to
        tokens[1:at] = targets[: at - 1]
        if start:  # at 0 the first document begins, which follows an end
            number, low, _ = self._spans(start - 1, start)[0]
            tokens[0] = self.shards[number][0][low]

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
