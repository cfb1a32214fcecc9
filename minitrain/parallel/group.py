"""A rank's view of its group: who it is, and every way to talk to the others.

`Group` wraps one of torch's process groups as an explicit argument: no default group, no globals.
Each operation is recorded in `group.trace` by `group.clock`, and announced on the `Board` that the
ranks of a machine share, which finds a mismatch before it starts and a deadlock while it lasts.
Costs about 15 µs an operation on top of gloo's (4 ranks), which takes 100 µs or more.

The seam for an emulated clock: `launch(fabric=…)` makes `fabric.clock(group)` once a rank, and calls
`group.use(clock)`; subgroups share it. What the clock is asked, and when: `measure.traffic.Clock`.
"""

from __future__ import annotations

import hashlib
import sys
import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from minitrain.errors import InputError, unknown_name
from minitrain.measure.traffic import Clock, Op, Trace, WallClock, ring_bytes
from minitrain.parallel.board import Board, Channel, NoBoard, Posting
from minitrain.parallel.rank_errors import ConnectionLost, Mismatch
from minitrain.parallel.source import learner_line

REDUCTIONS = {
    "sum": dist.ReduceOp.SUM,
    "avg": dist.ReduceOp.SUM,  # and divided when it has arrived: gloo has no average of its own
    "max": dist.ReduceOp.MAX,
    "min": dist.ReduceOp.MIN,
}
PEER_IS_GONE = ("closed by peer", "reset by peer", "Broken pipe", "Connection refused", "Timed out")


class Work:
    """An operation under way; `wait()` returns its result tensor, and may be called again."""

    def __init__(
        self, group: Group, op: Op, posting: Posting, handle: Any, finish: Callable[[], Tensor]
    ) -> None:
        self.op = op
        self._group, self._posting, self._handle, self._finish = group, posting, handle, finish
        self._result: Tensor | None = None
        self._over = False

    def wait(self) -> Tensor:
        if not self._over:
            self._result = self._group._complete(self.op, self._posting, self._handle, self._finish)
            self._over = True
        return self._result

    def is_completed(self) -> bool:
        return self._over or self._handle.is_completed()


class Group:
    """`ranks` are the members' numbers in the launch; `rank` is this one's place among them."""

    def __init__(
        self,
        process_group: dist.ProcessGroup,
        ranks: Sequence[int],
        rank: int,
        device: torch.device | None = None,
        trace: Trace | None = None,
        board: Board | NoBoard | None = None,
        name: str = "all",
    ) -> None:
        self.process_group, self.ranks, self.rank = process_group, tuple(ranks), rank
        self.size = len(self.ranks)
        self.device = device or torch.device("cpu")
        self.trace = trace or Trace(self.ranks[rank], clock=WallClock())
        self.board = board or NoBoard()
        self.name, self._children = name, 0
        self._channels: dict[tuple[str, int], Channel] = {}

    def __repr__(self) -> str:
        return f"Group(rank={self.rank}, size={self.size}, ranks={list(self.ranks)})"

    @property
    def clock(self) -> Clock:
        assert self.trace.clock is not None, "a rank's own trace has a clock"
        return self.trace.clock

    def use(self, clock: Clock) -> None:
        """From now on, this group and its subgroups tell the time by `clock`."""
        self.trace.clock, self.trace.emulated = clock, clock.emulated

    def now(self) -> float:
        """Seconds on this rank's clock: real ones, or the logical ones of an emulated fabric."""
        return self.clock.now()

    # ---- from one rank to another ----

    def send(self, tensor: Tensor, to: int) -> Tensor:
        """Sends `tensor` and returns it once `to` has taken it."""
        return self.isend(tensor, to).wait()

    def recv(self, tensor: Tensor, source: int) -> Tensor:
        """Fills `tensor` with what `source` sends, and returns it."""
        return self.irecv(tensor, source).wait()

    def isend(self, tensor: Tensor, to: int) -> Work:
        self._check_peer(to, "send to")
        buffer = _dense(tensor, "send")
        start = partial(self.process_group.send, [buffer], to, 0)
        return self._message("send", tensor, to, start, lambda: tensor)

    def irecv(self, tensor: Tensor, source: int) -> Work:
        self._check_peer(source, "receive from")
        buffer = _dense(tensor, "recv", fill=False)
        start = partial(self.process_group.recv, [buffer], source, 0)
        return self._message("recv", tensor, source, start, partial(_land, tensor, buffer))

    def exchange(self, send_tensor: Tensor, to: int, recv_tensor: Tensor, source: int) -> Tensor:
        """Sends to one rank while it receives from another; returns `recv_tensor`, filled.

        Both are under way before it waits for either, so a ring of exchanges cannot deadlock.
        """
        arriving = self.irecv(recv_tensor, source)
        leaving = self.isend(send_tensor, to)
        leaving.wait()
        return arriving.wait()

    # ---- all together ----

    def all_reduce(self, tensor: Tensor, op: str = "sum", async_op: bool = False) -> Tensor | Work:
        """Every rank ends with the sum (avg, max, min) of all ranks' `tensor`, in place."""
        options = dist.AllreduceOptions()
        options.reduceOp = self._reduction(op, tensor)
        buffer = _dense(tensor, "all_reduce")
        start = partial(self.process_group.allreduce, [buffer], options)
        finish = partial(_land, tensor, buffer, self.size if op == "avg" else 1)
        return self._collective("all_reduce", f"({op})", tensor, start, finish, async_op)

    def broadcast(self, tensor: Tensor, root: int = 0, async_op: bool = False) -> Tensor | Work:
        """Every rank ends with the root's `tensor`, in place."""
        if not 0 <= root < self.size:
            raise InputError(f"root {root} is not a rank of this group: use 0 to {self.size - 1}")
        options = dist.BroadcastOptions()
        options.rootRank, options.rootTensor = root, 0
        buffer = _dense(tensor, "broadcast")
        start = partial(self.process_group.broadcast, [buffer], options)
        finish = partial(_land, tensor, buffer)
        is_last = self.size > 1 and self.rank == (root - 1) % self.size
        sent = 0 if is_last else ring_bytes("broadcast", tensor.nbytes, self.size)
        name = f"(root {root})"
        return self._collective("broadcast", name, tensor, start, finish, async_op, sent)

    def reduce_scatter(
        self, output: Tensor, input: Tensor, op: str = "sum", async_op: bool = False
    ) -> Tensor | Work:
        """`output`, of n elements, gets this rank's n of the sum of all ranks' `input`, of N·n."""
        self._check_sizes("reduce_scatter", whole=input, part=output)
        options = dist.ReduceScatterOptions()
        options.reduceOp = self._reduction(op, input)
        buffer = _dense(output, "reduce_scatter", fill=False).view(-1)
        source = _dense(input, "reduce_scatter").view(-1)
        start = partial(self.process_group._reduce_scatter_base, buffer, source, options)
        finish = partial(_land, output, buffer, self.size if op == "avg" else 1)
        return self._collective("reduce_scatter", f"({op})", input, start, finish, async_op)

    def all_gather(self, output: Tensor, input: Tensor, async_op: bool = False) -> Tensor | Work:
        """`output`, of N·n elements, gets all ranks' `input`, of n elements, in rank order."""
        self._check_sizes("all_gather", whole=output, part=input)
        buffer = _dense(output, "all_gather", fill=False).view(-1)
        source = _dense(input, "all_gather").view(-1)
        start = partial(self.process_group._allgather_base, buffer, source)
        finish = partial(_land, output, buffer)
        return self._collective("all_gather", "", output, start, finish, async_op)

    def all_to_all(
        self,
        output: Tensor,
        input: Tensor,
        output_splits: Sequence[int] | None = None,
        input_splits: Sequence[int] | None = None,
        async_op: bool = False,
    ) -> Tensor | Work:
        """Rank i's j-th piece of `input` becomes rank j's i-th piece of `output` (rows, dim 0)."""
        incoming = self._splits(output, output_splits, "output")
        outgoing = self._splits(input, input_splits, "input")
        buffer = _dense(output, "all_to_all", fill=False)
        source = _dense(input, "all_to_all")
        start = partial(self.process_group.alltoall_base, buffer, source, incoming, outgoing)
        finish = partial(_land, output, buffer)
        row_bytes = input.nbytes // max(1, input.shape[0])
        sent = input.nbytes - outgoing[self.rank] * row_bytes
        return self._collective("all_to_all", "", input, start, finish, async_op, sent)

    def barrier(self) -> None:
        """No rank leaves before all have come."""
        empty = torch.empty(0, device=self.device)
        start = self.process_group.barrier
        self._collective("barrier", "", empty, start, lambda: empty, False, sent=0)

    # ---- smaller groups ----

    def split(self, color: int | None) -> Group | None:
        """Ranks that name the same color form a group, in their old order; None stays out."""
        mine = torch.tensor([-1 if color is None else color], device=self.device)
        colors = torch.empty(self.size, dtype=mine.dtype, device=self.device)
        start = partial(self.process_group._allgather_base, colors, mine)
        self._collective("all_gather", "", colors, start, lambda: colors, False, recorded=False)
        members = [rank for rank, c in enumerate(colors.tolist()) if c == color]
        return self.subgroup(members)

    def subgroup(self, ranks: Sequence[int]) -> Group | None:
        """The group of these of my ranks. Each of them calls it; any other rank gets None."""
        if len(set(ranks)) < len(ranks) or not all(0 <= r < self.size for r in ranks):
            raise InputError(f"{list(ranks)} must be different ranks from 0 to {self.size - 1}")
        if self.rank not in ranks:
            return None
        members = [self.ranks[r] for r in ranks]
        self._children += 1
        process_group = dist.new_group(members, use_local_synchronization=True)
        name = f"{self.name}/{self._children}:{members}"
        place = list(ranks).index(self.rank)
        return Group(process_group, members, place, self.device, self.trace, self.board, name)

    # ---- how an operation runs ----

    def _message(
        self, kind: str, tensor: Tensor, peer: int, start: Callable, finish: Callable
    ) -> Work:
        sent = tensor.nbytes if kind == "send" else 0
        op = Op(kind, tensor.nbytes, sent, self.size, peer)
        preposition = "to" if kind == "send" else "from"
        words = f"{kind} {preposition} rank {self.ranks[peer]} of {_shape(tensor)}"
        return self._start(op, self._channel(kind, peer), _key(tensor), words, start, finish)

    def _collective(
        self,
        kind: str,
        detail: str,
        tensor: Tensor,
        start: Callable,
        finish: Callable,
        async_op: bool,
        sent: int | None = None,
        recorded: bool = True,
    ) -> Tensor | Work:
        sent = ring_bytes(kind, tensor.nbytes, self.size) if sent is None else sent
        op = Op(kind, tensor.nbytes, sent, self.size)
        key = kind + detail if kind in ("barrier", "all_to_all") else kind + detail + _key(tensor)
        words = kind + detail if kind == "barrier" else f"{kind}{detail} of {_shape(tensor)}"
        channel = self._channel("all", self.rank)
        work = self._start(op, channel, key, words, start, finish, recorded)
        return work if async_op else work.wait()

    def _start(
        self,
        op: Op,
        channel: Channel,
        key: str,
        words: str,
        start: Callable,
        finish: Callable,
        recorded: bool = True,
    ) -> Work:
        posting, other = self.board.post(channel, key, words)
        if other is not None:
            theirs = self.board.words_at(other, channel.counterpart, posting.number)
            raise Mismatch(words, other, theirs)
        if recorded:
            self.trace.ops.append(op)
        self.clock.issue(op, self.process_group)
        handle = _torch(start)
        self.clock.resume()
        return Work(self, op, posting, handle, finish)

    def _complete(self, op: Op, posting: Posting, handle: Any, finish: Callable) -> Tensor:
        self.clock.wait(op)
        main = threading.current_thread() is threading.main_thread()
        alone = main and threading.active_count() <= self.board.threads
        self.board.wait(posting, learner_line(sys._getframe(2)), provable=alone)
        _torch(handle.wait)
        result = finish()
        self.clock.done(op)
        self.board.compute()
        self.clock.resume()
        return result

    def _channel(self, kind: str, peer: int) -> Channel:
        """The meeting place on the board: one for collectives, one a direction and pair."""
        channel = self._channels.get((kind, peer))
        if channel is None:
            channel = self._channels[kind, peer] = self._make_channel(kind, peer)
        return channel

    def _make_channel(self, kind: str, peer: int) -> Channel:
        if kind == "all":
            number = _id(self.name, "all")
            return Channel(
                number, number, tuple(r for r in self.ranks if r != self.ranks[self.rank])
            )
        way = (self.rank, peer) if kind == "send" else (peer, self.rank)
        other = "recv" if kind == "send" else "send"
        mine, theirs = _id(self.name, kind, *way), _id(self.name, other, *way)
        return Channel(mine, theirs, (self.ranks[peer],))

    # ---- what a caller can get wrong ----

    def _check_peer(self, peer: int, doing: str) -> None:
        if not isinstance(peer, int) or not 0 <= peer < self.size:
            last = self.size - 1
            raise InputError(
                f"cannot {doing} rank {peer} of {self.size}: use a rank from 0 to {last}"
            )
        if peer == self.rank:
            raise InputError(
                f"rank {peer} cannot {doing} itself: it would wait for ever; copy instead"
            )

    def _reduction(self, op: str, tensor: Tensor) -> Any:
        if op not in REDUCTIONS:
            raise unknown_name("reduction", op, REDUCTIONS)
        if op == "avg" and not tensor.is_floating_point():
            raise InputError(f"no avg of {tensor.dtype}: sum it, or convert it to float first")
        return REDUCTIONS[op]

    def _check_sizes(self, kind: str, whole: Tensor, part: Tensor) -> None:
        if whole.numel() != self.size * part.numel() or whole.dtype != part.dtype:
            raise InputError(
                f"{kind} over {self.size} ranks between {_shape(part)} and {_shape(whole)}: the "
                f"larger must have {self.size} x {part.numel()} elements of the same dtype"
            )

    def _splits(self, tensor: Tensor, splits: Sequence[int] | None, name: str) -> list[int]:
        rows = tensor.shape[0] if tensor.dim() else 0
        if splits is None:
            if rows % self.size:
                raise InputError(
                    f"{name} has {rows} rows, which {self.size} ranks cannot share equally: "
                    f"give {name}_splits, one number a rank"
                )
            return [rows // self.size] * self.size
        if len(splits) != self.size or sum(splits) != rows or min(splits) < 0:
            raise InputError(
                f"{name}_splits {list(splits)} must be {self.size} numbers with the sum {rows}"
            )
        return [int(split) for split in splits]


def _dense(tensor: Tensor, kind: str, fill: bool = True) -> Tensor:
    """The tensor itself, or where its elements are strided a dense copy for the wire."""
    if not isinstance(tensor, Tensor):
        raise InputError(f"{kind} takes a tensor, not {type(tensor).__name__}")
    tensor = tensor.detach()
    if tensor.is_contiguous():
        return tensor
    return (
        tensor.contiguous()
        if fill
        else torch.empty_like(tensor, memory_format=torch.contiguous_format)
    )


def _land(tensor: Tensor, buffer: Tensor, divide_by: int = 1) -> Tensor:
    """What has arrived in `buffer` becomes the caller's `tensor`."""
    if divide_by > 1:
        buffer.div_(divide_by)
    if buffer.data_ptr() != tensor.data_ptr():
        tensor.detach().copy_(buffer.view(tensor.shape))
    return tensor


def _torch(call: Callable) -> Any:
    """Calls into torch; a peer that is gone is told from an error of one's own."""
    try:
        return call()
    except RuntimeError as error:
        if any(sign in str(error) for sign in PEER_IS_GONE):
            raise ConnectionLost(str(error)) from error
        raise


def _shape(tensor: Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}"


def _key(tensor: Tensor) -> str:
    return f" {str(tensor.dtype).removeprefix('torch.')} {tensor.numel()}"


def _id(*parts: object) -> int:
    """The same 8 bytes on every rank for the same meeting place."""
    digest = hashlib.blake2b(repr(parts).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") | 1  # never 0, which is an empty row
