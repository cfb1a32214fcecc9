"""Packed rows into batches, split over ranks, in an order that is resumed at the exact sample.

An epoch is one permutation of all rows, drawn from (seed, epoch) alone. A step takes the next
batch_size * world_size rows of it and gives row i of them to rank i % world_size: the ranks are
disjoint, together they see every row once, and N ranks see what one rank with N times the batch
sees. The whole state is (epoch, rows consumed): it can be resumed with another number of ranks.

    permutation  7 2 9 4 | 1 8 0 5 | 3 6         10 rows, batch 2, 2 ranks
    rank 0       7   9   | 1   0   | 3           the last step is smaller
    rank 1         2   4 |   8   5 |   6

Shapes: B batch (a rank's)  T tokens. Lab: e01, e02; resuming: e12.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from minitrain.data.packing import IGNORED, PADDING, Packed
from minitrain.errors import InputError


@dataclass(frozen=True)
class Batch:
    """What a model is given, all (B, T) int64."""

    tokens: Tensor
    targets: Tensor  # -100 where nothing is counted
    documents: Tensor  # -1 for padding
    positions: Tensor

    @property
    def tokens_counted(self) -> int:
        """How many targets the loss is summed over."""
        return int((self.targets != IGNORED).sum())

    def to(self, device: str | torch.device) -> Batch:
        names = (self.tokens, self.targets, self.documents, self.positions)
        return Batch(*(tensor.to(device, non_blocking=True) for tensor in names))


class Loader:
    """Iterating gives the rest of the current epoch and then moves to the next.

    batch_size is a rank's. A batch counts as consumed when it has been handed out. Without
    `drop_last` the last step is smaller; where fewer rows than ranks are left, some ranks get
    a row of padding, whose targets all are -100, so that every rank makes the same steps.
    """

    def __init__(
        self,
        packed: Packed,
        batch_size: int,
        rank: int = 0,
        world_size: int = 1,
        seed: int = 0,
        shuffle: bool = True,
        drop_last: bool = False,
    ) -> None:
        _check(packed, batch_size, rank, world_size, seed)
        self.packed, self.batch_size, self.seed = packed, batch_size, seed
        self.rank, self.world_size = rank, world_size
        self.shuffle, self.drop_last = shuffle, drop_last
        self.epoch = self.consumed = 0
        if len(self) == 0:
            raise InputError(
                f"{len(packed)} rows do not fill one step of {batch_size} x {world_size} ranks: "
                "use a smaller batch, a larger corpus, or drop_last=False"
            )

    @property
    def rows_per_step(self) -> int:
        return self.batch_size * self.world_size

    def __len__(self) -> int:
        """Steps in a whole epoch, the same on every rank."""
        whole, rest = divmod(len(self.packed), self.rows_per_step)
        return whole + (rest > 0 and not self.drop_last)

    def __iter__(self) -> Iterator[Batch]:
        self._next_epoch_if_done()
        order, epoch = self._order(), self.epoch
        while self.epoch == epoch:
            rows = order[self.consumed : self.consumed + self.rows_per_step]
            self.consumed += len(rows)
            yield self._batch(rows)
            self._next_epoch_if_done()

    def _next_epoch_if_done(self) -> None:
        left = len(self.packed) - self.consumed
        if left <= 0 or (self.drop_last and left < self.rows_per_step):
            self.epoch, self.consumed = self.epoch + 1, 0

    def _order(self) -> np.ndarray:
        """The rows of this epoch; PCG64's raw stream is the same on every platform."""
        if not self.shuffle:
            return np.arange(len(self.packed))
        bits = np.random.PCG64(np.random.SeedSequence([self.seed, self.epoch]))
        return np.argsort(bits.random_raw(len(self.packed)), kind="stable")

    def _batch(self, rows: np.ndarray) -> Batch:
        own = self.packed[torch.from_numpy(rows[self.rank :: self.world_size])]
        if not len(own):
            own = _padding_like(self.packed[:1])
        tensors = (own.tokens.long(), own.targets.long(), own.documents.long(), own.positions())
        return Batch(*tensors)

    def state_dict(self) -> dict[str, int]:
        """Plain numbers, ready for JSON."""
        return {
            "epoch": self.epoch,
            "consumed": self.consumed,
            "rows": len(self.packed),
            "seed": self.seed,
        }

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Continue where the state was taken, on any number of ranks."""
        for name, own in (("rows", len(self.packed)), ("seed", self.seed)):
            if state.get(name) != own:
                raise InputError(
                    f"this loader has {name}={own}, the saved one had {name}={state.get(name)}: "
                    "resume with the same data, packing and seed"
                )
        self.epoch, self.consumed = int(state["epoch"]), int(state["consumed"])


def _padding_like(row: Packed) -> Packed:
    return Packed(
        row.tokens,
        torch.full_like(row.targets, IGNORED),
        torch.full_like(row.documents, PADDING),
    )


def _check(packed: Packed, batch_size: int, rank: int, world_size: int, seed: int) -> None:
    if batch_size < 1:
        raise InputError(f"a batch of {batch_size} rows is empty: use 1 or more")
    if world_size < 1 or not 0 <= rank < world_size:
        raise InputError(f"rank {rank} of {world_size}: ranks count from 0 to world_size - 1")
    if seed < 0:
        raise InputError(f"seed {seed} is negative: use 0 or more")
    if not len(packed):
        raise InputError("the packed corpus has no rows: pack at least one document")
