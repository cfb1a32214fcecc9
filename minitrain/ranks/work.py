"""How one operation of a `Group` runs: announced, stamped, started, waited for.

    board.post ─ clock.issue ─ torch starts it ─ …own work… ─ clock.wait ─ torch waits ─ clock.done

The board compares it with what the other ranks have posted before anything is sent, so that a
mismatch raises here instead of hanging, or crashing, in gloo.
"""

from __future__ import annotations

import hashlib
import sys
import threading
from collections.abc import Callable
from typing import Any

from torch import Tensor
from torch.distributed import ProcessGroup

from minitrain.errors import InputError
from minitrain.measure.traffic import Clock, Op, Trace
from minitrain.ranks.errors import ConnectionLost, Mismatch
from minitrain.ranks.flight_recorder import Board, Channel, NoBoard, Posting
from minitrain.ranks.source import learner_line

PEER_IS_GONE = ("closed by peer", "reset by peer", "Broken pipe", "Connection refused")


class Work:
    """An operation under way; `wait()` returns its result tensor, and may be called again."""

    def __init__(
        self, wire: Wire, op: Op, posting: Posting, handle: Any, finish: Callable[[], Tensor]
    ) -> None:
        self.op = op
        self._wire, self._posting, self._handle, self._finish = wire, posting, handle, finish
        self._result: Tensor | None = None
        self._over = False

    def wait(self) -> Tensor:
        if not self._over:
            self._result = self._wire.complete(self.op, self._posting, self._handle, self._finish)
            self._over = True
        return self._result

    def is_completed(self) -> bool:
        """Whether `wait()` would return at once."""
        return self._over or self._handle.is_completed()


class Wire:
    """Starts and completes the operations of one group; `ranks` are its members in the launch."""

    def __init__(
        self,
        process_group: ProcessGroup,
        ranks: tuple[int, ...],
        rank: int,
        trace: Trace,
        board: Board | NoBoard,
        name: str,
    ) -> None:
        self.process_group, self.ranks, self.rank = process_group, ranks, rank
        self.trace, self.board, self.name = trace, board, name
        self.channels: dict[tuple[str, int], Channel] = {}

    @property
    def clock(self) -> Clock:
        assert self.trace.clock is not None, "a rank's own trace has a clock"
        return self.trace.clock

    def message(
        self, op: Op, tensor: Tensor, start: Callable[[], Any], finish: Callable[[], Tensor]
    ) -> Work:
        """A send or a recv, under way."""
        assert op.peer is not None, "a message has a peer"
        way = "to" if op.kind == "send" else "from"
        words = f"{op.kind} {way} rank {self.ranks[op.peer]} of {shape(tensor)}"
        return self._start(op, self._channel(op.kind, op.peer), size(tensor), words, start, finish)

    def collective(
        self,
        op: Op,
        detail: str,
        tensor: Tensor,
        start: Callable[[], Any],
        finish: Callable[[], Tensor],
        recorded: bool = True,
    ) -> Work:
        """An operation of all ranks, under way. `detail`: what must agree beside kind and size."""
        name, is_sized = op.kind + detail, op.kind not in ("barrier", "all_to_all")
        key = f"{name} {size(tensor)}" if is_sized else name
        words = name if op.kind == "barrier" else f"{name} of {shape(tensor)}"
        channel = self._channel("all", self.rank)
        return self._start(op, channel, key, words, start, finish, recorded)

    def _start(
        self,
        op: Op,
        channel: Channel,
        key: str,
        words: str,
        start: Callable[[], Any],
        finish: Callable[[], Tensor],
        recorded: bool = True,
    ) -> Work:
        posting, other = self.board.post(channel, key, words)
        if other is not None:
            theirs = self.board.words_at(other, channel.counterpart, posting.number)
            raise Mismatch(self.ranks[self.rank], words, other, theirs)
        if recorded:
            self.trace.ops.append(op)
        self.clock.issue(op, self.process_group)
        handle = call(start)
        self.clock.resume()
        return Work(self, op, posting, handle, finish)

    def complete(
        self, op: Op, posting: Posting, handle: Any, finish: Callable[[], Tensor]
    ) -> Tensor:
        """Waits for the data; while it does, the board says for what, and at which line."""
        self.clock.wait(op)
        is_main = threading.current_thread() is threading.main_thread()
        is_alone = is_main and threading.active_count() <= self.board.threads
        self.board.wait(posting, learner_line(sys._getframe(2)), provable=is_alone)
        call(handle.wait)
        result = finish()
        self.clock.done(op)
        self.board.compute()
        self.clock.resume()
        return result

    def note_end(self, work: Work) -> None:
        """Stamps when an asynchronous collective is over, though no one waits for it yet."""
        clock, op = self.clock, work.op
        has_future = op.kind != "reduce_scatter"  # gloo's own is made of others, and has none
        if has_future and not clock.emulated:
            ended = work._handle.get_future()
            ended.add_done_callback(lambda _: setattr(op, "finished", clock.now()))

    def _channel(self, kind: str, peer: int) -> Channel:
        """The meeting place on the board: one for collectives, one a pair and direction."""
        channel = self.channels.get((kind, peer))
        if channel is None:
            channel = self.channels[kind, peer] = self._make_channel(kind, peer)
        return channel

    def _make_channel(self, kind: str, peer: int) -> Channel:
        if kind == "all":
            number, me = _id(self.name, "all"), self.ranks[self.rank]
            return Channel(number, number, tuple(r for r in self.ranks if r != me))
        pair = (self.rank, peer) if kind == "send" else (peer, self.rank)
        other = "recv" if kind == "send" else "send"
        mine, theirs = _id(self.name, kind, *pair), _id(self.name, other, *pair)
        return Channel(mine, theirs, (self.ranks[peer],))


def call(of_torch: Callable[[], Any]) -> Any:
    """Calls into torch; that a peer is gone is told from an error of one's own."""
    try:
        return of_torch()
    except RuntimeError as error:
        if says_peer_is_gone(error):
            raise ConnectionLost(str(error)) from error
        raise


def says_peer_is_gone(error: BaseException) -> bool:
    return isinstance(error, RuntimeError) and any(sign in str(error) for sign in PEER_IS_GONE)


def dense(tensor: Tensor, kind: str) -> Tensor:
    """The tensor's elements as the wire takes them: itself, or where it is strided a copy."""
    if not isinstance(tensor, Tensor):
        raise InputError(f"{kind} takes a tensor, not {type(tensor).__name__}")
    return tensor.detach().contiguous()


def land(tensor: Tensor, buffer: Tensor, divide_by: int = 1) -> Tensor:
    """What has arrived in `buffer` becomes the caller's `tensor`."""
    if divide_by > 1:
        buffer.div_(divide_by)
    if buffer.data_ptr() != tensor.data_ptr():
        tensor.detach().copy_(buffer.view(tensor.shape))
    return tensor


def shape(tensor: Tensor) -> str:
    return f"{_dtype(tensor)} {list(tensor.shape)}"


def size(tensor: Tensor) -> str:
    return f"{_dtype(tensor)} {tensor.numel()}"


def _dtype(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def _id(*parts: object) -> int:
    """The same 8 bytes on every rank for the same meeting place; never 0, an empty row."""
    digest = hashlib.blake2b(repr(parts).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") | 1
