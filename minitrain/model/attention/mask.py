"""Attention masks described, not materialized: a few numbers, and a document number per token.

A query reads keys at or before its own position, no further back than the window, and in its own
document. `attention_mask` materializes that as (T, T) numbers, 4·T² bytes; a tiled kernel asks for
one tile at a time, and for the range of keys that a row of tiles can read at all:

                 keys →                 x   read in full: no mask is needed
    queries ↓    x \\ . . .              \\   crossed by the diagonal: needs a mask from `tile`
                 x x \\ . .              .   never visited, since `keys` ends before it
                 . x x \\ .              window: `keys` starts later, too

Paper: Dao, arXiv 2307.08691. Lab: e05. Shapes: B batch  T tokens.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from einops import rearrange
from torch import Tensor


@dataclass(frozen=True)
class Mask:
    """`offset` is the position of the first query among the keys: 0 in self-attention.

    None aligns the last query with the last key ("bottom-right"), as when a few new tokens read
    everything before them. Documents are (B, queries) and (B, keys), both or neither.
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
        """The keys, of `length`, that some query of `rows` may read: a contiguous range."""
        first = 0 if self.window is None else self.offset + rows.start - self.window + 1
        start = min(max(0, first), length)
        return range(start, max(start, min(self.offset + rows.stop, length)))

    def tile(self, rows: slice, columns: slice, device: torch.device | str) -> Tensor | None:
        """(B or 1, 1, rows, columns) bool: True where a query may read; None if all True."""
        nearest = self.offset + rows.start - (columns.stop - 1)  # lower bound of the distance
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
