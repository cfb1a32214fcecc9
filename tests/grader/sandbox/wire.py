"""A graded rank's end of the relay (relay.py), in place of torch's process group.

No graded rank has a torch process group. A `Group`'s requests go as plain bytes to the process that
launched the ranks, which never runs the submission, and are answered there:

    Group.all_reduce ─ Wire.allreduce ─ ask ──►  relay: notes it, adds up, answers
    Work.wait ───────── Handle.wait ─── wait ─►

So a rank cannot retract what it has sent, and messages that bypass `Group` are seen as well.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from minitrain.lab.sandbox import plain_data
from minitrain.measure.traffic import Label

REDUCTIONS = {"sum": dist.ReduceOp.SUM, "max": dist.ReduceOp.MAX, "min": dist.ReduceOp.MIN}


class Wire:
    """One rank's wire; a subgroup has its own, over the same connection.

    ranks: of the members, in the launch.
    """

    def __init__(
        self, connection: Connection, ranks: Sequence[int], name: str = "", count: Any = None
    ) -> None:
        self.connection, self.ranks, self.name = connection, list(ranks), name
        self.count = [0] if count is None else count  # of the rank's requests so far

    def subgroup(self, ranks: Sequence[int], name: str) -> Wire:
        return Wire(self.connection, ranks, name, self.count)

    def mark(self, label: Label) -> None:
        """Reports a mark in the rank's trace to the relay, which notes when it was set."""
        self.tell("mark", label=plain(label))

    # ---- named as in torch's process groups ----

    def send(self, tensors: Sequence[Tensor], to: int, tag: int) -> Handle:
        return self._ask("send", tensors[0], None, peer=to, tag=tag)

    def recv(self, tensors: Sequence[Tensor], source: int, tag: int) -> Handle:
        return self._ask("recv", None, tensors[0], peer=source, tag=tag)

    def allreduce(self, tensors: Sequence[Tensor], options: Any) -> Handle:
        return self._ask("all_reduce", tensors[0], tensors[0], how=_name(options))

    def broadcast(self, tensors: Sequence[Tensor], options: Any) -> Handle:
        return self._ask("broadcast", tensors[0], tensors[0], root=options.rootRank)

    def _reduce_scatter_base(self, output: Tensor, input: Tensor, options: Any) -> Handle:
        return self._ask("reduce_scatter", input, output, how=_name(options))

    def _allgather_base(self, output: Tensor, input: Tensor) -> Handle:
        return self._ask("all_gather", input, output)

    def alltoall_base(
        self, output: Tensor, input: Tensor, incoming: list[int], outgoing: list[int]
    ) -> Handle:
        return self._ask("all_to_all", input, output, splits=outgoing)

    def barrier(self) -> Handle:
        return self._ask("barrier", None, None)

    # ---- traffic over the connection ----

    def _ask(self, kind: str, data: Tensor | None, into: Tensor | None, **fields: Any) -> Handle:
        """Starts an operation; `into` is filled by the handle's wait."""
        expected = 0 if into is None else into.nbytes
        with _unseen():
            self.tell(kind, group=self.name, members=self.ranks, data=data, expected=expected,
                      **fields)  # fmt: skip
        self.count[0] += 1
        return Handle(self, self.count[0] - 1, into)

    def tell(self, kind: str, **fields: Any) -> None:
        self.connection.send_bytes(plain_data.pack({"kind": kind, **fields}))

    def hear(self) -> Any:
        return plain_data.unpack(self.connection.recv_bytes())


class Handle:
    """An operation in progress, with the interface of torch's `Work`."""

    def __init__(self, wire: Wire, number: int, into: Tensor | None) -> None:
        self.wire, self.number, self.into, self.done = wire, number, into, False
        self.callbacks: list[Callable[[Any], Any]] = []

    def wait(self) -> None:
        if self.done:
            return
        with _unseen():
            self.wire.tell("wait", number=self.number)
            data = self.wire.hear()
            if self.into is not None:
                self.into.view(-1).copy_(data.view(-1))
        self.done = True
        for callback in self.callbacks:
            callback(self)

    def is_completed(self) -> bool:
        if not self.done:
            self.wire.tell("poll", number=self.number)
        return self.done or self.wire.hear()

    def get_future(self) -> Handle:
        return self

    def add_done_callback(self, callback: Callable[[Any], Any]) -> None:
        self.callbacks.append(callback)


class Marks(list):
    """The marks of a trace; each is reported to the relay as it is set."""

    def __init__(self, wire: Wire) -> None:
        super().__init__()
        self.wire = wire

    def append(self, mark: Any) -> None:
        self.wire.mark(mark[0])
        super().append(mark)


def plain(label: Label) -> Label:
    """A mark's label as plain data: a pipeline's operation becomes a plain tuple."""
    return label if isinstance(label, str) else tuple(label)


def _name(options: Any) -> str:
    return next(name for name, op in REDUCTIONS.items() if options.reduceOp == op)


def _unseen() -> Any:
    """Hides torch's part of a message from modes: it is not the learner's work."""
    return torch._C._DisableTorchDispatch()
