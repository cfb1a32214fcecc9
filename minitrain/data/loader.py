"""Batches packed rows and splits them over ranks, in an order that resumes at the exact sample.

The order of an epoch's rows depends on (seed, epoch) alone: a permutation of all rows, unless
another order is given (stream/order, stream/mixture). A step takes the next
batch_size * world_size rows of it and gives row i of them to rank i % world_size: the ranks are
disjoint, together they see every row once, and N ranks see what one rank with N times the batch
sees. The whole state is (epoch, rows consumed): it can be resumed with another number of ranks.
Worker processes are given whole steps, so that their number changes nothing but the speed.

    permutation  7 2 9 4 | 1 8 0 5 | 3 6         10 rows, batch 2, 2 ranks
    rank 0       7   9   | 1   0   | 3           the last step is smaller
    rank 1         2   4 |   8   5 |   6

Shapes: B batch (a rank's)  T tokens. Lab: e01, e02; resuming: e12.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader

from minitrain.data.packing import IGNORED, PADDING, Packed, Rows
from minitrain.data.stream.order import InOrder, Order, Shuffled
from minitrain.errors import InputError, check_whole


@dataclass(frozen=True)
class Batch:
    """A model's input and targets, all (B, T) int64."""

    tokens: Tensor
    targets: Tensor  # -100: not counted in the loss
    documents: Tensor  # -1 for padding
    positions: Tensor

    @property
    def tokens_counted(self) -> int:
        """The number of targets that the loss is summed over."""
        return int((self.targets != IGNORED).sum())

    def to(self, device: str | torch.device) -> Batch:
        names = (self.tokens, self.targets, self.documents, self.positions)
        return Batch(*(tensor.to(device, non_blocking=True) for tensor in names))


class Loader:
    """Iterating gives the rest of the current epoch and then moves to the next.

    batch_size is per rank. A batch counts as consumed when it is handed out, not when a worker
    reads it ahead. Without `drop_last` the last step is smaller; if fewer rows than ranks are left,
    some ranks get a row of padding, with all targets -100, so that every rank makes the same number
    of steps. `workers`: processes of torch's DataLoader that read ahead.
    """

    def __init__(
        self,
        packed: Rows,
        batch_size: int,
        rank: int = 0,
        world_size: int = 1,
        seed: int = 0,
        shuffle: bool = True,
        drop_last: bool = False,
        order: Order | None = None,
        workers: int = 0,
    ) -> None:
        _check(packed, batch_size, rank, world_size, seed, workers)
        self.packed, self.batch_size, self.seed = packed, batch_size, seed
        self.rank, self.world_size = rank, world_size
        self.drop_last, self.workers = drop_last, workers
        self.own_order = order is not None
        self.order = order or (Shuffled if shuffle else InOrder)(len(packed))
        self.epoch = self.consumed = 0
        if len(self) == 0:
            raise InputError(
                f"{len(self.order)} rows do not fill one step of {batch_size} x {world_size} "
                "ranks: use a smaller batch, a larger corpus, or drop_last=False"
            )

    @property
    def rows_per_step(self) -> int:
        return self.batch_size * self.world_size

    def __len__(self) -> int:
        """Number of steps in a full epoch, the same on every rank."""
        whole, rest = divmod(len(self.order), self.rows_per_step)
        return whole + (rest > 0 and not self.drop_last)

    def __iter__(self) -> Iterator[Batch]:
        self._next_epoch_if_done()
        order, epoch = self._drawn_order(), self.epoch
        least = self.rows_per_step if self.drop_last else 1
        starts = range(self.consumed, len(order) - least + 1, self.rows_per_step)
        for start, batch in zip(starts, self._batches(order, starts)):
            if (self.epoch, self.consumed) != (epoch, start):
                raise InputError(
                    "the loader was moved, or iterated elsewhere, in the middle of an epoch: "
                    "begin a new iteration after load_state_dict"
                )
            self.consumed = min(start + self.rows_per_step, len(order))
            yield batch
        self._next_epoch_if_done()

    def _next_epoch_if_done(self) -> None:
        left = len(self.order) - self.consumed
        if left <= 0 or (self.drop_last and left < self.rows_per_step):
            self.epoch, self.consumed = self.epoch + 1, 0

    def _drawn_order(self) -> np.ndarray:
        order = np.asarray(self.order(self.seed, self.epoch))
        if len(order) != len(self.order) or order.min() < 0 or order.max() >= len(self.packed):
            raise InputError(
                f"the order names rows {order.min()} to {order.max()}, {len(order)} in all, of "
                f"{len(self.packed)} rows: make it for these rows"
            )
        return order

    def _batches(self, order: np.ndarray, starts: range) -> Iterable[Batch]:
        """One batch per start, made here or in the workers, which take every W-th start each."""
        place = self.rows_per_step, self.rank, self.world_size
        read = partial(_read_step, self.packed, order, *place)
        if not self.workers:
            return map(read, starts)
        # Its own generator: the DataLoader would otherwise draw from, and advance, the global one.
        return DataLoader(
            range(len(order)),  # a sample is a step's start; `read` makes the batch from it
            sampler=starts,
            batch_size=None,
            collate_fn=read,
            num_workers=self.workers,
            generator=torch.Generator(),
        )

    def state_dict(self) -> dict[str, int | str]:
        """The state as plain values, ready for JSON."""
        order = {"order": self._order_digest()} if self.own_order else {}
        place = {"epoch": self.epoch, "consumed": self.consumed}
        return {**place, "rows": len(self.packed), "seed": self.seed, **order}

    def load_state_dict(self, state: dict[str, int | str]) -> None:
        """Continues from a saved state, on any number of ranks."""
        for name, own in (("rows", len(self.packed)), ("seed", self.seed)):
            if state.get(name) != own:
                raise InputError(
                    f"this loader has {name}={own}, the saved one had {name}={state.get(name)}: "
                    "resume with the same data, packing and seed"
                )
        if state.get("order") != (self._order_digest() if self.own_order else None):
            raise InputError(
                "this loader's rows come in another order than the saved one's: resume with the "
                "same weights, temperature and curriculum"
            )
        place = state.get("epoch"), state.get("consumed")
        if not all(isinstance(number, int) and number >= 0 for number in place):
            raise InputError(
                f"the saved loader was at epoch {place[0]}, row {place[1]}: give what state_dict "
                "gave"
            )
        self.epoch, self.consumed = place

    def _order_digest(self) -> str:
        """A digest of the first epoch's order; equal digests mean equal orders."""
        first = np.asarray(self.order(self.seed, 0), np.int64)
        return hashlib.sha256(first.tobytes()).hexdigest()[:16]


def _read_step(
    packed: Rows, order: np.ndarray, rows_per_step: int, rank: int, world_size: int, start: int
) -> Batch:
    rows = order[start : start + rows_per_step]
    own = packed[torch.from_numpy(rows[rank::world_size])]
    if not len(own):
        row = packed[:1]
        nothing = torch.full_like(row.targets, IGNORED), torch.full_like(row.documents, PADDING)
        own = Packed(row.tokens, *nothing)
    tensors = (own.tokens.long(), own.targets.long(), own.documents.long(), own.positions())
    return Batch(*tensors)


def _check(
    packed: Rows, batch_size: int, rank: int, world_size: int, seed: int, workers: int
) -> None:
    check_whole("batch_size", batch_size)
    if world_size < 1 or not 0 <= rank < world_size:
        raise InputError(f"rank {rank} of {world_size}: ranks count from 0 to world_size - 1")
    if seed < 0 or seed % 1:
        raise InputError(f"seed is {seed}: use a whole number, 0 or more")
    if workers < 0:
        raise InputError(f"{workers} workers: use 0 to read in this process, or 1 and more")
    if not len(packed):
        raise InputError("the packed corpus has no rows: pack at least one document")
