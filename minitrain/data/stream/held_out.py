"""Documents of token files held out: no targets in training, all targets in their own rows.

    stream      a a a a | b b b b | b c c c        b is held out
    training    a a a a |    ·    | - c c c        - : -100;  · : nothing is left of the row
    held out    b b b b | b

Attention and positions stay inside a document, so the others are trained as if `b` were not there:
the only cost is its positions. Memory: 8 bytes a row. Shapes: N rows  T tokens.
"""

from __future__ import annotations

import random
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from minitrain.data.packing import IGNORED, Packed, pack_stream, row_numbers
from minitrain.data.stream.token_files import TokenRows
from minitrain.errors import InputError


@dataclass(frozen=True)
class HeldOut:
    """`training` with `tokens` targets, and rows (N, T) with the held-out targets."""

    training: RowsWithout
    tokens: int
    rows: Packed


@dataclass(frozen=True)
class RowsWithout:
    """Rows of token files, without targets in the held-out `documents`."""

    rows: TokenRows
    documents: Tensor  # (D,)
    kept: np.ndarray  # (N,) int64: rows with any target left

    def __len__(self) -> int:
        return len(self.kept)

    def __getitem__(self, rows: Tensor | Sequence[int] | slice) -> Packed:
        """(N, T) each, as in `Packed`."""
        whole = self.rows[self.kept[row_numbers(rows, len(self))]]
        out = torch.isin(whole.documents, self.documents)  # (N, T)
        return Packed(whole.tokens, whole.targets.masked_fill(out, IGNORED), whole.documents)


def hold_out(rows: TokenRows, seed: int, part: float = 0.04, most_rows: int = 200) -> HeldOut:
    """Holds out a share `part` of the documents, drawn by `seed`, up to `most_rows` rows; with too
    few documents, the end of the text."""
    if not 0 < part < 1 or most_rows < 1:
        raise InputError(f"part {part}, {most_rows} rows: hold out between 0 and 1, and 1 or more")
    count = min(int(part * rows.index.documents), most_rows * rows.length)
    if count < 1:
        return _without_the_end(rows, part, most_rows)
    spans, room = {}, most_rows * rows.length
    for document in random.Random(seed).sample(range(rows.index.documents), count):
        start, stop = spans[document] = _span(rows, document)
        room -= stop - start
        if room <= 0:
            break
    drawn = dict(sorted(spans.items()))
    tokens = rows.index.tokens - sum(stop - start for start, stop in drawn.values())
    kept = np.delete(np.arange(len(rows)), _covered(rows, list(drawn.values())))
    training = RowsWithout(rows, torch.tensor(list(drawn), dtype=torch.int32), kept)
    documents = [rows.read(start, stop)[0][:-1] for start, stop in drawn.values()]
    held = pack_stream(documents, rows.length, rows.index.end_token)
    return HeldOut(training, tokens, held[:most_rows])


def _without_the_end(rows: TokenRows, part: float, most_rows: int) -> HeldOut:
    count = min(max(1, int(part * len(rows))), most_rows)
    if count == len(rows):
        raise InputError(
            f"{rows.folder} fills one row of {rows.length} tokens, and one is held out: use a "
            "shorter --length, or prepare more text"
        )
    first = len(rows) - count
    training = RowsWithout(rows, torch.empty(0, dtype=torch.int32), np.arange(first))
    return HeldOut(training, first * rows.length, rows[range(first, len(rows))])


def _span(rows: TokenRows, document: int) -> tuple[int, int]:
    """The document's range of tokens in the whole text, end token included."""
    shard = bisect_right(rows.documents_before, document) - 1
    number, stops = document - rows.documents_before[shard], rows.shards[shard][1]
    start = int(stops[number - 1]) if number else 0
    return rows.starts[shard] + start, rows.starts[shard] + int(stops[number])


def _covered(rows: TokenRows, spans: list[tuple[int, int]]) -> list[int]:
    """The rows that lie entirely in spans; the last row may be short."""
    merged: list[list[int]] = []
    for start, stop in spans:
        if merged and merged[-1][1] == start:
            merged[-1][1] = stop
        else:
            merged.append([start, stop])
    covered: list[int] = []
    for start, stop in merged:
        last = len(rows) if stop == rows.index.tokens else stop // rows.length
        covered += range(-(-start // rows.length), last)
    return covered
