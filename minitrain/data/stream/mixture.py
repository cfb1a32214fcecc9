"""Several sources in one stream, with weights that may move towards the end of a run.

    p_i ~ rows_i ^ (1 / T)      T = 1: by size; 5: small ones more often; inf: equal

Each sample first draws its source by the current weights, then takes that source's next row: a row
repeats only once its source is exhausted, and each pass has another order. The whole order is a
function of (seed, epoch), so that ranks, workers and resuming need nothing else.
Temperature: Arivazhagan et al. 2019 (1907.05019). Annealing, high-quality text last, at a falling
learning rate: MiniCPM, Hu et al. 2024 (2404.06395); Llama 3, 2407.21783, 3.1.3. After 4 passes a
source teaches little: Muennighoff et al. 2023 (2305.16264).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import inf

import numpy as np
import torch
from torch import Tensor

from minitrain.data.packing import Packed, Rows, row_numbers
from minitrain.data.stream.order import permutation
from minitrain.errors import InputError


def tempered(sizes: Sequence[float], temperature: float = 1.0) -> tuple[float, ...]:
    """Weights that sum to 1, for sources of these sizes; a temperature of inf makes them equal."""
    if not sizes or not all(0 < size < inf for size in sizes) or not temperature > 0:
        raise InputError(
            f"sizes {tuple(sizes)}, temperature {temperature}: all have to be over 0, sizes finite"
        )
    largest = max(sizes)
    scaled = [(size / largest) ** (1 / temperature) for size in sizes]
    return tuple(value / sum(scaled) for value in scaled)


class JoinedRows:
    """The rows of several sources concatenated: for `Loader`, with a `Mixture` as order."""

    def __init__(self, parts: Sequence[Rows]) -> None:
        self.parts = list(parts)
        lengths = {part[:1].length for part in self.parts}
        if len(lengths) != 1:
            raise InputError(f"rows of {sorted(lengths)} tokens: give sources of one row length")
        self.starts = [0, *accumulate(map(len, self.parts))]

    @property
    def sizes(self) -> tuple[int, ...]:
        """The number of rows of each source."""
        return tuple(map(len, self.parts))

    def __len__(self) -> int:
        return self.starts[-1]

    def __getitem__(self, rows: Tensor | Sequence[int] | slice) -> Packed:
        wanted = row_numbers(rows, len(self))
        source = np.searchsorted(self.starts, wanted, side="right") - 1
        order = np.argsort(source, kind="stable")
        pieces = [
            part[torch.from_numpy(wanted[source == index] - self.starts[index])]
            for index, part in enumerate(self.parts)
        ]
        back = torch.from_numpy(np.argsort(order, kind="stable"))
        tensors = zip(*((piece.tokens, piece.targets, piece.documents) for piece in pieces))
        return Packed(*(torch.cat(each)[back] for each in tensors))


@dataclass(frozen=True)
class Mixture:
    """The order of a `JoinedRows`: `samples` per epoch, each source drawn by its weight.

    `sizes`: rows of each source; `weights` need not sum to 1. They change linearly to
    `last_weights`, from `anneal_from` (a share of the epoch) to its end.
    """

    sizes: tuple[int, ...]
    weights: tuple[float, ...]
    samples: int
    last_weights: tuple[float, ...] | None = None
    anneal_from: float = 0.8

    def __post_init__(self) -> None:
        for weights in (self.weights, self.last_weights or self.weights):
            if (
                len(weights) != len(self.sizes)
                or not all(0 <= weight < inf for weight in weights)
                or not 0 < sum(weights) < inf
            ):
                raise InputError(
                    f"weights {weights} for {len(self.sizes)} sources: give one each, finite, "
                    "none below 0 and not all 0"
                )
        if min(*self.sizes, self.samples) < 1 or self.samples % 1 or not 0 <= self.anneal_from < 1:
            raise InputError(
                f"sizes {self.sizes}, {self.samples} samples, annealing from {self.anneal_from}: "
                "use sizes and whole samples of 1 or more, and 0 to less than 1"
            )

    def __len__(self) -> int:
        return self.samples

    def weights_at(self, progress: np.ndarray) -> np.ndarray:
        """(samples,) elapsed shares of the epoch -> (samples, sources), rows summing to 1."""
        first, last = (
            np.array(weights, float) / sum(weights)
            for weights in (self.weights, self.last_weights or self.weights)
        )
        moved = np.clip((progress - self.anneal_from) / (1 - self.anneal_from), 0, 1)[:, None]
        return (1 - moved) * first + moved * last

    def sources(self, seed: int, epoch: int) -> np.ndarray:
        """(samples,) the source of each sample."""
        bits = np.random.PCG64(np.random.SeedSequence([seed, epoch]))
        drawn = (bits.random_raw(self.samples) >> np.uint64(11)) / 2**53  # uniform in [0, 1)
        bounds = np.cumsum(self.weights_at(np.arange(self.samples) / self.samples), axis=1)
        # rounding may leave the last bound under 1: never go past the last source with weight
        return (drawn[:, None] * bounds[:, -1:] >= bounds).sum(axis=1)

    def passes(self) -> tuple[float, ...]:
        """Mean number of passes over each source in an epoch."""
        shares = self.weights_at(np.arange(self.samples) / self.samples).mean(axis=0)
        return tuple(float(self.samples * s / size) for s, size in zip(shares, self.sizes))

    def __call__(self, seed: int, epoch: int) -> np.ndarray:
        sources = self.sources(seed, epoch)
        rows = np.empty(self.samples, np.int64)
        for source, (start, size) in enumerate(zip(accumulate((0, *self.sizes)), self.sizes)):
            own = np.flatnonzero(sources == source)
            # From 1: seeds are zero-padded, and (seed, epoch, 0, 0) was used to draw the sources.
            passes = range(1, 1 + -(-len(own) // size))
            every = [permutation(size, seed, epoch, source + 1, number) for number in passes]
            if every:
                rows[own] = start + np.concatenate(every)[: len(own)]
        return rows
