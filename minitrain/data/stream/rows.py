"""Sources of rows for a loader: anything that gives a part of itself as a `Packed`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from torch import Tensor

from minitrain.data.packing import Packed


class Rows(Protocol):
    """A `Packed` itself, `TokenRows`, `JoinedRows`."""

    def __len__(self) -> int: ...

    def __getitem__(self, rows: Tensor | Sequence[int] | slice) -> Packed: ...
