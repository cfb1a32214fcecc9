"""Elastic training: fewer ranks, same data, same batches; each takes more rows or microbatches.

    4 ranks   x 3 rows                = 12 rows a step
    3 ranks   x 4 rows                = 12
    2 ranks   x 3 rows x 2 at a time  = 12      if a rank has no room for 6

The loader's state is an epoch and a count of rows, from which any number of ranks takes the next
12; the learning rate need not change, and the losses are the same except for summation order.
Resuming: load_checkpoint with may_change. Paper: Varuna (EuroSys 2022). Lab: e12.
"""

from __future__ import annotations

from dataclasses import dataclass

from minitrain.errors import InputError, check_whole, divide


@dataclass(frozen=True)
class Share:
    """A rank's share of a step: `accumulate` microbatches of `rows` rows."""

    rows: int
    accumulate: int


def share_of_batch(batch: int, ranks: int, most_rows: int) -> Share:
    """Splits `batch` rows over `ranks`, each with room for `most_rows` rows at a time."""
    check_whole("most_rows", most_rows)
    own = divide("rows of a batch", batch, ranks)
    rows = max(n for n in range(1, min(own, most_rows) + 1) if own % n == 0)
    return Share(rows, own // rows)


def most_ranks(batch: int, available: int) -> int:
    """The largest number of the available ranks that can share the batch evenly."""
    if available < 1:
        raise InputError("no rank is left")
    return max(n for n in range(1, available + 1) if batch % n == 0)
