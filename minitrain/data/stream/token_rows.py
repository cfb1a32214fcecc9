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

from minitrain.data.packing import IGNORED, PADDING, Packed, row_numbers
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
        self.tokens = self.starts[-1]

    def __len__(self) -> int:
        return -(-self.tokens // self.length)

    def __getitem__(self, rows: Tensor | Sequence[int] | slice) -> Packed:
        """(N, T) each, as in `Packed`."""
        wanted = row_numbers(rows, len(self)).tolist()
        # What a row reads and what it is asked for are one token apart.
        spans = np.empty((len(wanted), self.length + 1), np.int32)
        owners = np.empty((len(wanted), self.length), np.int32)
        padded = {}  # where padding begins, of rows that have some
        for place, row in enumerate(wanted):
            filled = self._fill(row, spans[place], owners[place])
            if filled < self.length:
                padded[place] = filled
        tokens, targets = spans[:, :-1], spans[:, 1:]
        if padded:
            tokens, targets = tokens.copy(), targets.copy()
        for place, filled in padded.items():
            tokens[place, filled:], targets[place, filled:] = self.index.end_token, IGNORED
            owners[place, filled:] = PADDING
        return Packed(*(torch.from_numpy(array) for array in (tokens, targets, owners)))

    def _fill(self, row: int, span: np.ndarray, owners: np.ndarray) -> int:
        """One row's tokens with the one before them, (T + 1,), and whose each is, (T,) -> how many
        there are."""
        start = row * self.length
        stop = min(start + self.length, self.tokens)
        if start:
            number = bisect_right(self.starts, start - 1) - 1
            span[0] = self.shards[number][0][start - 1 - self.starts[number]]
        else:
            span[0] = self.index.end_token  # which the first document follows
        number, at = bisect_right(self.starts, start) - 1, start
        while at < stop:
            own, stops = self.shards[number]
            before = self.starts[number]
            to = min(stop, self.starts[number + 1])
            span[at - start + 1 : to - start + 1] = own[at - before : to - before]
            first = int(stops.searchsorted(at - before, side="right"))
            owner = self.documents_before[number] + first
            owners[at - start : to - start] = owner
            while first < len(stops) and (end := before + int(stops[first])) < to:
                owner, first = owner + 1, first + 1  # the next document begins at `end`
                owners[end - start : to - start] = owner
            number, at = number + 1, to
        return stop - start

    def __reduce__(self) -> tuple:
        """A process of its own opens the files itself, instead of being sent their content."""
        return TokenRows, (self.folder, self.length)
