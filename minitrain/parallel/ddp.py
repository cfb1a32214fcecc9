"""Data parallelism: every rank has the whole model and a part of the batch; gradients are averaged.

It equals one process on the joined batch, since the gradient of a mean is the mean of the gradients
(of equally large parts). Cost a step: one all-reduce of P gradients, so that each rank sends
2(N-1)/N · 4P bytes in float32, whatever the batch.

    naive        backward 3 2 1 | a3 | a2 | a1 | optimizer    an all-reduce a parameter, afterwards
    bucketed     backward 3 2 1 |  a32  | a1 | optimizer      few large messages: less latency
    overlapped   backward 3 2 1 |·| optimizer                 sent while backward still computes
                        |  a32  | a1 |

Paper: Li et al. 2020, "PyTorch Distributed". Lab: e02_data_parallel. P parameters, N ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from minitrain.errors import InputError
from minitrain.ranks.group import Group
from minitrain.ranks.work import Work

BUCKET_BYTES = 25 * 2**20
LAST_BYTES = 2 * 2**20  # when the last bucket fills, no backward is left to hide its all-reduce


@torch.no_grad()
def broadcast_parameters(group: Group, model: nn.Module, root: int = 0) -> None:
    """Gives every rank the root's parameters and buffers; tied ones are sent once."""
    for tensor in [*model.parameters(), *model.buffers()]:
        group.broadcast(tensor.data, root)


def all_reduce_gradients(group: Group, model: nn.Module) -> None:
    """Naive DDP, called after backward: one all-reduce per parameter, no overlap.

    A parameter that this rank did not use counts as zero: every rank must take part in every
    all-reduce, in the same order, or the others wait for ever.
    """
    for parameter in trainable(model):
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
        group.all_reduce(parameter.grad, op="avg")


def all_reduce_gradients_bucketed(
    group: Group, model: nn.Module, bucket_bytes: int = BUCKET_BYTES
) -> None:
    """The same average with one all-reduce per bucket: fewer messages, less latency."""
    for bucket in make_buckets(model, bucket_bytes):
        for parameter in bucket.parameters:
            bucket.take(parameter, group.size)
        group.all_reduce(bucket.buffer)


def trainable(model: nn.Module) -> list[nn.Parameter]:
    """The trainable parameters in order of registration, tied ones once."""
    return [p for p in model.parameters() if p.requires_grad]


class Bucket:
    """Gradients side by side in one flat buffer, so that they are sent as one message.

    `take` moves a gradient in and makes `parameter.grad` a view of the buffer: the all-reduce
    writes straight into the parameter's gradient, without a copy back.
    """

    def __init__(self, parameters: Sequence[nn.Parameter]) -> None:
        self.parameters = list(parameters)
        self.buffer = torch.zeros(
            sum(p.numel() for p in parameters),
            dtype=parameters[0].dtype,
            device=parameters[0].device,
        )
        parts = self.buffer.split([p.numel() for p in parameters])
        self.views = {p: part.view_as(p) for p, part in zip(parameters, parts)}
        self.missing = set(parameters)  # not yet received in this backward
        self.work: Work | Pending | None = None  # its all-reduce, once issued

    @torch.no_grad()
    def take(self, parameter: nn.Parameter, ranks: int) -> None:
        """Divides by N on the way in, so that the sum over ranks is the average."""
        view, gradient = self.views[parameter], parameter.grad
        if gradient is None:
            view.zero_()
        else:
            torch.mul(gradient, 1 / ranks, out=view)  # in place if it is already the view
        parameter.grad = view
        self.missing.discard(parameter)

    def reset(self) -> None:
        self.missing = set(self.parameters)
        self.work = None


def make_buckets(model: nn.Module, bucket_bytes: int = BUCKET_BYTES) -> list[Bucket]:
    """A buffer for each of `bucket_groups`."""
    return [Bucket(group) for group in bucket_groups(model, bucket_bytes)]


def bucket_groups(model: nn.Module, bucket_bytes: int = BUCKET_BYTES) -> list[list[nn.Parameter]]:
    """Parameters grouped in reverse order of registration, about the order of their gradients.

    A parameter larger than a bucket gets one to itself; a bucket has one dtype and device. If
    there are several, the last one is small.
    """
    if bucket_bytes < 1:
        raise InputError(f"bucket_bytes={bucket_bytes}: give 1 or more (1: a bucket a parameter)")
    groups = _filled(reversed(trainable(model)), bucket_bytes)
    if len(groups) > 1:
        tail = _filled(reversed(groups[-1]), LAST_BYTES)[0]
        rest = groups.pop()[: -len(tail)]
        groups += [group for group in (rest, tail[::-1]) if group]
    return groups


def _filled(parameters: Iterable[nn.Parameter], bucket_bytes: int) -> list[list[nn.Parameter]]:
    groups: list[list[nn.Parameter]] = []
    room = 0
    for p in parameters:
        nbytes = p.numel() * p.element_size()
        alike = bool(groups) and (p.dtype, p.device) == (groups[-1][0].dtype, groups[-1][0].device)
        if not alike or nbytes > room:
            groups.append([])
            room = bucket_bytes
        groups[-1].append(p)
        room -= nbytes
    return groups


class Pending(Protocol):
    """A mean in flight: a `Work`, or the rest of a hook's work once its message has arrived."""

    def wait(self) -> object: ...


# Called with a bucket that holds this rank's own gradients, and issues its messages. After `wait()`
# the bucket holds the ranks' mean, or an approximation of it (compressed/).
Hook = Callable[[Group, Bucket], Pending]


class DDP(nn.Module):
    """Wraps a model so that `backward` leaves the averaged gradient in every `parameter.grad`.

    A hook runs as soon as a parameter's gradient is accumulated. Once a bucket has all gradients
    and all earlier buckets are in flight, its all-reduce is issued and backward goes on:

        backward   |-- layer 4 --|-- layer 3 --|-- layer 2 --|-- layer 1 --|·wait·|
        link                     |------- bucket 0 ------|   |--- bucket 1 ---|

    Buckets are issued in the same order on every rank, whatever the order of the hooks. A parameter
    without a gradient counts as zero, so ranks that use different parts of the model agree.
    When backward ends, `finish` waits for the buckets; `overlap=False` issues all of them there.
    A `hook` takes the place of the all-reduce, to send fewer bytes.
    """

    def __init__(
        self,
        model: nn.Module,
        group: Group,
        bucket_bytes: int = BUCKET_BYTES,
        overlap: bool = True,
        broadcast_buffers: bool = True,
        hook: Hook | None = None,
    ) -> None:
        super().__init__()
        self.module = model
        self.group = group
        self.hook = hook
        self.parts = 1 if hook else group.size  # a hook is given gradients as they are
        self.overlap = overlap
        self.broadcast_buffers = broadcast_buffers
        self.synchronize = True
        self.unfinished = False  # a backward is pending whose gradients must be averaged
        self.callback_queued = False  # `finish` runs at the end of this backward
        self.issued = 0  # buckets in flight
        broadcast_parameters(group, model)
        self.buckets = make_buckets(model, bucket_bytes)
        self.bucket_of = {p: bucket for bucket in self.buckets for p in bucket.parameters}
        for parameter in self.bucket_of:
            parameter.register_post_accumulate_grad_hook(self._accumulated)

    def forward(self, *inputs: Any, **named_inputs: Any) -> Any:
        if torch.is_grad_enabled() and self.synchronize:
            self._check_known()
            self._reset()  # also after a backward that raised
            self.unfinished = True
            if self.broadcast_buffers:
                for buffer in self.module.buffers():
                    self.group.broadcast(buffer)
        return self.module(*inputs, **named_inputs)

    def _check_known(self) -> None:
        for name, parameter in self.module.named_parameters():
            if parameter.requires_grad and parameter not in self.bucket_of:
                raise InputError(
                    f"{name} was replaced, added or unfrozen after wrapping, and its gradient "
                    "would not be averaged: change the model first, then wrap it in DDP"
                )

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Inside, forward and backward only accumulate; the next backward outside synchronizes."""
        before, self.synchronize = self.synchronize, False
        try:
            yield
        finally:
            self.synchronize = before

    def finish(self) -> None:
        """Sends the remaining buckets, waits, leaves averages in `.grad`. A second call is free.

        Backward calls it at its end. Call it yourself if a rank may have no gradient at all.
        """
        if not self.unfinished:
            return
        for bucket in self.buckets:
            for parameter in bucket.missing.copy():
                bucket.take(parameter, self.parts)
        self._issue_ready()
        for bucket in self.buckets:
            bucket.work.wait()
        self._reset()

    def _accumulated(self, parameter: nn.Parameter) -> None:
        """The hook; autograd passes the parameter, whose `.grad` is the gradient."""
        if not self.synchronize:
            return
        if not self.callback_queued:
            self.unfinished = self.callback_queued = True
            torch.autograd.Variable._execution_engine.queue_callback(self.finish)
        bucket = self.bucket_of[parameter]
        assert parameter in bucket.missing, (
            f"a gradient of shape {tuple(parameter.shape)} came twice in one backward: "
            "under reentrant checkpointing use checkpoint(..., use_reentrant=False)"
        )
        bucket.take(parameter, self.parts)
        if self.overlap:
            self._issue_ready()

    def _reset(self) -> None:
        for bucket in self.buckets:
            bucket.reset()
        self.issued = 0
        self.unfinished = self.callback_queued = False

    def _issue_ready(self) -> None:
        while self.issued < len(self.buckets) and not self.buckets[self.issued].missing:
            bucket = self.buckets[self.issued]
            if self.hook:
                bucket.work = self.hook(self.group, bucket)
            else:
                bucket.work = self.group.all_reduce(bucket.buffer, async_op=True)
            self.issued += 1


def accumulate(
    ddp: DDP, microbatches: Sequence[Tensor], loss_of: Callable[[nn.Module, Tensor], Tensor]
) -> Tensor:
    """Forward and backward of M equally large microbatches, synchronized in the last one only.

    The gradients are those of one batch M times as large, at one batch's messages. Returns the mean
    of the losses `loss_of(ddp, microbatch)`, a scalar each.
    """
    total = torch.zeros(())
    for index, microbatch in enumerate(microbatches):
        last = index == len(microbatches) - 1
        with nullcontext() if last else ddp.no_sync():
            loss = loss_of(ddp, microbatch) / len(microbatches)
            loss.backward()
        total = total + loss.detach()
    return total
