"""Attention masks, described and not drawn: a few numbers and a document's number a token.

A query reads keys that stand at or before its own place, no further back than the window, and in
its own document. `attention_mask` draws that as (T, T) numbers, 4·T² bytes; a kernel that works in
tiles asks for one tile at a time, and for the keys that a row of tiles can read at all:

                 keys →                 x   read in full: no mask is needed
    queries ↓    x \\ . . .              \\   crossed by the diagonal: `tile` says what is read
                 x x \\ . .              .   never touched, as `keys` ends before it
                 . x x \\ .              window: `keys` begins later, too

Paper: Dao, arXiv 2307.08691. Lab: e05. Shapes: B batch  T tokens.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from einops import rearrange
from torch import Tensor


@dataclass(frozen=True)
class Mask:
    """`offset` is the place of the first query among the keys: 0 where a sequence reads itself.

    None puts the last query beside the last key ("bottom-right"), as where a few new tokens read
    all that came before. Documents are (B, queries) and (B, keys), both or neither.
    """

    offset: int | None = None
    window: int | None = None  # a token sees itself and the window - 1 tokens before it
    q_documents: Tensor | None = None
    k_documents: Tensor | None = None

    def __post_init__(self) -> None:
        both = (self.q_documents is None) == (self.k_documents is None)
        assert both, "documents are given for queries and for keys, or for neither"

    @classmethod
    def of(cls, x: Tensor, documents: Tensor | None, window: int | None) -> Mask:
        """The mask of a sequence x (B, T, …) that attends to itself; takes the arguments of
        `attention_mask`."""
        return cls(0, window, documents, documents)

    def between(self, queries: int, keys: int) -> Mask:
        """The mask with its offset filled in for this number of queries and keys."""
        return self if self.offset is not None else replace(self, offset=keys - queries)

    def part(self, rows: slice, columns: slice) -> Mask:
        """The mask of some of the queries and some of the keys."""
        assert self.offset is not None, "use between(queries, keys) first"
        offset = self.offset + rows.start - columns.start
        if self.q_documents is None:
            return replace(self, offset=offset)
        documents = self.q_documents[:, rows], self.k_documents[:, columns]
        return Mask(offset, self.window, *documents)

    def keys(self, rows: slice, length: int) -> range:
        """The keys, of `length`, that some query of `rows` may read: a run without a gap."""
        first = 0 if self.window is None else self.offset + rows.start - self.window + 1
        start = min(max(0, first), length)
        return range(start, max(start, min(self.offset + rows.stop, length)))

    def tile(self, rows: slice, columns: slice, device: torch.device | str) -> Tensor | None:
        """(B or 1, 1, rows, columns) bool: what may be read; None where everything may."""
        nearest = self.offset + rows.start - (columns.stop - 1)  # how far back the key is, at least
        farthest = self.offset + rows.stop - 1 - columns.start
        near = self.window is None or farthest < self.window
        if self.q_documents is None and nearest >= 0 and near:
            return None
        row = torch.arange(rows.start, rows.stop, device=device) + self.offset
        column = torch.arange(columns.start, columns.stop, device=device)
        distance = rearrange(row, "i -> 1 1 i 1") - column  # (1, 1, rows, columns)
        readable = distance >= 0
        if not near:
            readable = readable & (distance < self.window)
        if self.q_documents is not None:
            asking = rearrange(self.q_documents[:, rows], "b i -> b 1 i 1")
            readable = readable & (
                asking == rearrange(self.k_documents[:, columns], "b j -> b 1 1 j")
            )
        return readable
