"""The means of compressed gradients: the hook that DDP calls, 16-bit casts, and error feedback.

A compressor C sends C(g) in place of a gradient g. What it leaves out is lost, unless the rank
keeps it and adds it to the next gradient, so that everything is sent sooner or later:

    a = g + e        send C(a)        e <- a - C(a)          sum of sent + e = sum of g, exactly

Cost: a cast halves DDP's 2(N-1)/N · 4P bytes a step; the residual e takes 4P bytes of memory.
Papers: Seide et al. 2014; Karimireddy et al. 2019 (arXiv:1901.09847). Lab: e02g_slow_networks.
P parameters, N ranks.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from minitrain.errors import InputError
from minitrain.parallel.ddp import Bucket, Pending
from minitrain.ranks.group import Group


class Then(NamedTuple):
    """The rest of the work of a mean whose messages are in flight."""

    wait: Callable[[], Tensor]


class Compressor(ABC):
    """An approximate mean over ranks of flat vectors, as a hook of DDP.

    `key` identifies a vector from step to step: state such as a residual is kept for each.
    """

    @abstractmethod
    def start(self, group: Group, key: Hashable, vector: Tensor) -> Pending:
        """Sends; `wait()` returns the mean over ranks, (P,) as the vector, which stays as it is."""

    @torch.no_grad()
    def __call__(self, group: Group, bucket: Bucket) -> Pending:
        mean = self.start(group, bucket, bucket.buffer)
        return Then(torch.no_grad()(lambda: bucket.buffer.copy_(mean.wait())))


class Exact(Compressor):
    """The mean itself, uncompressed: what all others are compared with."""

    def start(self, group: Group, key: Hashable, vector: Tensor) -> Pending:
        return group.all_reduce(vector.clone(), op="avg", async_op=True)


@dataclass(frozen=True)
class Cast(Compressor):
    """The all-reduce in float16 or bfloat16: half the bytes of float32.

    Divides by N before the sum, so that float16 does not overflow in it. bfloat16 has float32's
    range and 8 bits of precision, float16 11 bits and the largest number 65,504.
    """

    dtype: torch.dtype = torch.float16

    def __post_init__(self) -> None:
        if self.dtype not in (torch.float16, torch.bfloat16):
            raise InputError(f"gradients cannot be sent as {self.dtype}: use float16 or bfloat16")

    def start(self, group: Group, key: Hashable, vector: Tensor) -> Pending:
        narrow = vector.to(self.dtype).div_(group.size)
        work = group.all_reduce(narrow, async_op=True)
        return Then(lambda: work.wait().to(vector.dtype))


def without_feedback(key: Hashable, vector: Tensor, compress: Callable[[Tensor], Tensor]) -> Tensor:
    """Naive: what C leaves out is lost, and a biased C may never send some coordinates."""
    return compress(vector)


@dataclass
class ErrorFeedback:
    """The residual of each vector: what has not been sent yet."""

    residuals: dict[Hashable, Tensor] = field(default_factory=dict)

    def add(self, key: Hashable, vector: Tensor) -> Tensor:
        """a = g + e, a new tensor."""
        residual = self.residuals.get(key)
        return vector.clone() if residual is None else vector + residual

    def keep(self, key: Hashable, wanted: Tensor, sent: Tensor) -> None:
        """e = a - C(a)"""
        self.residuals[key] = wanted - sent

    def __call__(
        self, key: Hashable, vector: Tensor, compress: Callable[[Tensor], Tensor]
    ) -> Tensor:
        """C(g + e), for a C that needs no other rank."""
        wanted = self.add(key, vector)
        sent = compress(wanted)
        self.keep(key, wanted, sent)
        return sent
