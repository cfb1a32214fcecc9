"""Sparse gradients: each rank sends k of its P numbers, the largest or a random choice.

    top-k       k values and their places, 8 bytes each; ranks choose different ones, so an
                all-gather: (N-1) · 8k bytes sent a rank, which grows with N
    random-k    all ranks draw the same places from a common seed: an all-reduce of k values,
                2(N-1)/N · 4k bytes, and no places at all

Both keep the rest for later (hook.py). Without that, random-k has to be multiplied by P/k, which
makes it unbiased and P/k times as noisy; with both, it diverges.
Papers: Stich et al. 2018 (arXiv:1809.07599); Lin et al. 2018 (arXiv:1712.01887).
Lab: e02g_slow_networks. P parameters, N ranks.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from minitrain.errors import InputError
from minitrain.parallel.compressed.hook import Compressor, ErrorFeedback, Then
from minitrain.parallel.ddp import Pending
from minitrain.ranks.group import Group

PLACE_BYTES = 4  # an int32


def top_places(vector: Tensor, k: int) -> Tensor:
    """The places of the k largest magnitudes, (k,) int64."""
    return vector.abs().topk(k, sorted=False).indices


def scattered(like: Tensor, places: Tensor, values: Tensor) -> Tensor:
    """Zeros (P,), with `values` added at `places`, which may be named several times."""
    return torch.zeros_like(like).index_add_(0, places, values)


def check_fraction(fraction: float) -> None:
    if not 0 < fraction <= 1:
        raise InputError(f"fraction={fraction}: give a share of the gradient's numbers, up to 1")


def sparse_mean_naive(group: Group, vector: Tensor, k: int) -> Tensor:
    """Zeroes all but the k largest, and sends the zeros too: 2(N-1)/N · 4P bytes, none saved."""
    places = top_places(vector, k)
    return group.all_reduce(scattered(vector, places, vector[places]), op="avg")


@dataclass
class TopK(Compressor):
    """The largest numbers of each rank, `fraction` of them, with the rest kept for later."""

    fraction: float = 0.01
    feedback: bool = True
    memory: ErrorFeedback = field(default_factory=ErrorFeedback)

    def __post_init__(self) -> None:
        check_fraction(self.fraction)

    def start(self, group: Group, key: Hashable, vector: Tensor) -> Pending:
        k = max(1, round(self.fraction * vector.numel()))
        wanted = self.memory.add(key, vector)
        places = top_places(wanted, k)
        values = wanted[places]
        if self.feedback:
            self.memory.keep(key, wanted, scattered(wanted, places, values))
        message = torch.cat([values.view(torch.uint8), places.int().view(torch.uint8)])
        arriving = message.new_empty(group.size, message.numel())
        work = group.all_gather(arriving, message, async_op=True)
        return Then(lambda: unpacked(work.wait(), vector, k) / group.size)


def unpacked(messages: Tensor, like: Tensor, k: int) -> Tensor:
    """The sum (P,) of all ranks' values, from (N, bytes): k values each, then their k places."""
    values, places = messages.split([k * like.element_size(), k * PLACE_BYTES], dim=1)
    values = values.contiguous().view(like.dtype)  # (N, k)
    places = places.contiguous().view(torch.int32).long()
    return scattered(like, places.flatten(), values.flatten())


@dataclass
class RandomK(Compressor):
    """A random `fraction` of the numbers, the same on every rank, without sending their places.

    Every rank draws from `seed` alone: a global generator would be in another state on each rank.
    """

    fraction: float = 0.01
    feedback: bool = True
    seed: int = 0
    memory: ErrorFeedback = field(default_factory=ErrorFeedback)

    def __post_init__(self) -> None:
        check_fraction(self.fraction)
        self.dice = torch.Generator().manual_seed(self.seed)

    def start(self, group: Group, key: Hashable, vector: Tensor) -> Pending:
        size = vector.numel()
        k = max(1, round(self.fraction * size))
        places = torch.randperm(size, generator=self.dice)[:k].to(vector.device)
        wanted = self.memory.add(key, vector)
        values = wanted[places]
        if self.feedback:
            self.memory.keep(key, wanted, scattered(wanted, places, values))
        else:
            values = values * (size / k)  # unbiased, since each place is drawn k/P of the time
        work = group.all_reduce(values, op="avg", async_op=True)
        return Then(lambda: scattered(vector, places, work.wait()))
