"""PowerSGD: a gradient matrix M (m, n) sent as two thin ones, P (m, r) and Q (n, r), M ≈ P Q^T.

A step of power iteration on the *mean* matrix, though no rank ever has it: both products are linear
in M, so the mean over ranks can be taken of the products.

    P = mean(M_i Q)        orthogonalize P        Q = mean(M_i^T P)        gradient = P Q^T

P P^T projects onto the columns of P, hence P Q^T = P P^T mean(M): with r = min(m, n) it is the mean
itself. Q is kept for the next step (warm start), where it is nearly right already; what the r
directions leave out goes into each rank's residual.
Cost: 2(N-1)/N · 4r(m+n) bytes a matrix, in place of 2(N-1)/N · 4mn; vectors are sent as they are.
Paper: Vogels, Karimireddy & Jaggi 2019 (arXiv:1905.13727), algorithms 1 and 2. Lab:
e02g_slow_networks. m rows  n columns  r rank.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from minitrain.errors import InputError, check_whole
from minitrain.parallel.compressed.hook import Compressor, ErrorFeedback, Then
from minitrain.parallel.ddp import Bucket, Pending
from minitrain.ranks.group import Group


def low_rank_naive(group: Group, matrix: Tensor, rank: int) -> Tensor:
    """The best approximation of the mean matrix, by its SVD: sends the whole matrix for it."""
    u, s, v = torch.linalg.svd(group.all_reduce(matrix, op="avg"), full_matrices=False)
    return (u[:, :rank] * s[:rank]) @ v[:rank]


def orthogonalize(matrix: Tensor) -> Tensor:
    """Orthonormal columns (m, r) of the same span. Householder's QR: no column is divided by its
    own length, which is 0 or pure rounding error where the gradient has fewer than r directions."""
    return torch.linalg.qr(matrix).Q


def power_step(group: Group, matrix: Tensor, q: Tensor) -> tuple[Tensor, Tensor]:
    """One step for one matrix (m, n) and Q (n, r): P (m, r) and the next Q, equal on all ranks."""
    p = orthogonalize(group.all_reduce(matrix @ q, op="avg"))
    return p, group.all_reduce(matrix.T @ p, op="avg")


@dataclass
class PowerSGD(Compressor):
    """The same as a hook of DDP, with one message for all Ps of a bucket and one for all Qs.

    The first `warmup` steps send gradients in full: they change most, and Q has nothing to start
    from. A matrix is compressed if that saves at least a factor `least_saving`, and vectors never
    are: they travel with the Ps.
    """

    rank: int = 4
    warmup: int = 10
    warm_start: bool = True
    feedback: bool = True
    least_saving: float = 2.0
    seed: int = 0
    memory: ErrorFeedback = field(default_factory=ErrorFeedback)

    def __post_init__(self) -> None:
        check_whole("rank", self.rank)
        if self.warmup < 0:
            raise InputError(f"warmup={self.warmup}: a number of steps, 0 or more")
        self.dice = torch.Generator().manual_seed(self.seed)  # the same draws on every rank
        self.steps: dict[Bucket, int] = {}
        self.kept_qs: dict[Bucket, list[Tensor]] = {}

    def start(self, group: Group, key: object, vector: Tensor) -> Pending:
        raise InputError("PowerSGD needs the shapes of the matrices: use it as a hook of DDP")

    @torch.no_grad()
    def __call__(self, group: Group, bucket: Bucket) -> Pending:
        self.steps[bucket] = self.steps.get(bucket, 0) + 1
        if self.steps[bucket] <= self.warmup:
            bucket.buffer /= group.size
            return group.all_reduce(bucket.buffer, async_op=True)
        wanted = self.memory.add(bucket, bucket.buffer)
        bucket.buffer.copy_(wanted)
        matrices, rest = self._matrices(bucket)
        qs = self._qs(bucket, matrices)
        ps = [m @ q for m, q in zip(matrices, qs)]
        first = group.all_reduce(flat([*rest, *ps], bucket.buffer), op="avg", async_op=True)

        @torch.no_grad()
        def finish() -> Tensor:
            (*means,) = parts_like([*rest, *ps], first.wait())
            for own, mean in zip(rest, means):
                own.copy_(mean)
            columns = [orthogonalize(mean) for mean in means[len(rest) :]]
            rows = [m.T @ p for m, p in zip(matrices, columns)]
            second = group.all_reduce(flat(rows, bucket.buffer), op="avg")
            self.kept_qs[bucket] = [q.clone() for q in parts_like(rows, second)]
            for m, p, q in zip(matrices, columns, self.kept_qs[bucket]):
                torch.matmul(p, q.T, out=m)
            if self.feedback:
                self.memory.keep(bucket, wanted, bucket.buffer)
            return bucket.buffer

        return Then(finish)

    def _matrices(self, bucket: Bucket) -> tuple[list[Tensor], list[Tensor]]:
        """Views of the buffer: those worth compressing, as (m, n), and all others."""
        matrices, rest = [], []
        for parameter in bucket.parameters:
            view = bucket.views[parameter]
            matrix = view.view(view.shape[0], -1) if view.ndim > 1 else view.view(-1, 1)
            sent = sum(matrix.shape) * min(self.rank, *matrix.shape)
            worth = sent * self.least_saving < matrix.numel()
            (matrices if worth else rest).append(matrix)
        return matrices, rest

    def _qs(self, bucket: Bucket, matrices: Sequence[Tensor]) -> list[Tensor]:
        if self.warm_start and bucket in self.kept_qs:
            return self.kept_qs[bucket]
        shapes = [(m.shape[1], min(self.rank, *m.shape)) for m in matrices]
        drawn = [torch.randn(shape, generator=self.dice) for shape in shapes]
        return [q.to(m) for q, m in zip(drawn, matrices)]


def flat(tensors: Sequence[Tensor], like: Tensor) -> Tensor:
    """All of them, one after another, as one message."""
    return torch.cat([like.new_empty(0), *(t.flatten() for t in tensors)])


def parts_like(tensors: Sequence[Tensor], message: Tensor) -> list[Tensor]:
    """The parts of a message from `flat`, in the shapes of `tensors`."""
    parts = message.split([t.numel() for t in tensors])
    return [part.view_as(t) for t, part in zip(tensors, parts)]
