"""The life of one operation of a `Group`: recorded, stamped, started, waited for.

    recorder.record ─ clock.issue ─ torch starts it ─ …own work… ─ clock.wait ─ torch waits ─ done

A `GroupCall` describes an operation; the `Work` made from it is in flight. The flight recorder
compares the call with those of the other ranks before anything is sent, so that a mismatch raises
here instead of hanging, or crashing, in gloo.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from minitrain.errors import InputError
from minitrain.measure.traffic import Op
from minitrain.ranks.errors import ConnectionLost, Mismatch, WaitedTooLong
from minitrain.ranks.flight_recorder import (
    Entry,
    channel_of_collectives,
    channel_of_messages,
)
from minitrain.ranks.source import calling_line, place_of

Member = Any  # a `Group`, which this rank is a member of, and which imports this file
PEER_IS_GONE = ("closed by peer", "reset by peer", "Broken pipe", "Connection refused")
TIMED_OUT = "Timed out waiting"
THREADS = 2  # of a rank that has started none: the one that runs it, and its watch


class GroupCall(NamedTuple):
    """One operation as a rank calls it.

    `start()` passes it to torch and returns torch's handle; `finish()`, once torch is done, copies
    the received data to its destination, and returns the caller's tensor.
    """

    kind: str  # send recv broadcast all_reduce reduce_scatter all_gather all_to_all barrier
    tensor: Tensor  # the full buffer: all_gather's output, reduce_scatter's input
    sent_bytes: int  # bytes this rank sends
    start: Callable[[], Any]
    finish: Callable[[], Tensor]
    detail: str = ""  # "(sum)", "(root 0)": must agree, like kind and size
    peer: int | None = None  # the other rank of a send or recv, within the group
    is_traced: bool = True  # False for the group's own bookkeeping

    def key(self) -> str:
        """The part that must agree on all ranks: the number of elements must, the shape need
        not."""
        size = f"{_name(self.tensor.dtype)} {self.tensor.numel()}"
        if self.peer is not None:
            return size
        is_sized = self.kind not in ("barrier", "all_to_all")
        return f"{self.kind}{self.detail} {size}" if is_sized else self.kind + self.detail

    def words(self, ranks: tuple[int, ...]) -> str:
        """The operation in readable form: "all_reduce(sum) of float32 [3, 4]"."""
        if self.kind == "barrier":
            return self.kind
        name = self.kind + self.detail
        if self.peer is not None:
            name = f"{self.kind} {'to' if self.kind == 'send' else 'from'} rank {ranks[self.peer]}"
        return f"{name} of {shape(self.tensor)}"


class Work:
    """An operation in flight; `wait()` returns its result tensor, and may be called again."""

    def __init__(self, group: Member, call: GroupCall) -> None:
        self.group, self._finish = group, call.finish  # not the call: `start` holds the input
        self.op = Op(call.kind, call.tensor.nbytes, call.sent_bytes, group.size, call.peer,
                     members=group.ranks)  # fmt: skip
        self._entry = record(group, call)
        if call.is_traced:
            group.trace.ops.append(self.op)
        group.clock.issue(self.op, group.process_group)
        self._handle = in_torch(call.start)
        group.clock.resume()
        self._result: Tensor | None = None

    def wait(self) -> Tensor:
        if self._result is None:
            self.group.clock.wait(self.op)
            self._wait_for_peers()
            self._result = self._finish()
            self.group.clock.done(self.op)
            self.group.clock.resume()
        return self._result

    def is_completed(self) -> bool:
        """True if `wait()` would return at once."""
        return self._result is not None or self._handle.is_completed()

    def _wait_for_peers(self) -> None:
        """Waits; meanwhile the flight recorder has the operation and the line."""
        begun, where = time.monotonic(), calling_line()
        self.group.recorder.wait(self._entry, where, provable=_is_alone())
        try:
            in_torch(self._handle.wait)
        except RuntimeError as error:
            if TIMED_OUT in str(error):
                raise self._waited_too_long(where, time.monotonic() - begun) from error
            raise
        self.group.recorder.compute()

    def _waited_too_long(self, where: str, seconds: float) -> WaitedTooLong:
        recorder, rank = self.group.recorder, self.group.ranks[self.group.rank]
        words = recorder.words(recorder.rank, self._entry) or self.op.kind
        missing = recorder.missing(recorder.rank, self._entry)
        return WaitedTooLong(rank, f"{words}, {place_of(where)}", seconds, missing)

    def stamp_end(self) -> None:
        """Records the end of an asynchronous collective, even if no one waits for it yet."""
        clock, op = self.group.clock, self.op
        has_future = op.kind != "reduce_scatter"  # gloo's own is composed of others, and has none
        if has_future and not clock.emulated:
            ended = self._handle.get_future()
            ended.add_done_callback(lambda _: setattr(op, "finished", clock.now()))


def record(group: Member, call: GroupCall) -> Entry:
    """Enters the call into the flight recorder; Mismatch if another rank made a different call."""
    if call.peer is None:
        channel = channel_of_collectives(group.name, group.ranks, group.rank)
    else:
        channel = channel_of_messages(group.name, group.ranks, group.rank, call.kind, call.peer)
    words = call.words(group.ranks)
    entry, other = group.recorder.record(channel, call.key(), words)
    if other is not None:
        theirs = group.recorder.words_at(other, channel.counterpart, entry.number)
        raise Mismatch(group.ranks[group.rank], words, other, theirs)
    return entry


def in_torch(function: Callable[[], Any]) -> Any:
    """Calls into torch; raises ConnectionLost if the error means that a peer is gone."""
    try:
        return function()
    except RuntimeError as error:
        if says_peer_is_gone(error):
            raise ConnectionLost(str(error)) from error
        raise


def says_peer_is_gone(error: BaseException) -> bool:
    return isinstance(error, RuntimeError) and any(sign in str(error) for sign in PEER_IS_GONE)


def _is_alone() -> bool:
    """True if no other thread of this rank could end its wait."""
    is_main = threading.current_thread() is threading.main_thread()
    return is_main and threading.active_count() <= THREADS


def dense(tensor: Tensor, kind: str) -> Tensor:
    """The tensor's elements, contiguous, as torch sends them: itself, or a copy if strided."""
    if not isinstance(tensor, Tensor):
        raise InputError(f"{kind} takes a tensor, not {type(tensor).__name__}")
    if tensor.numel() and not tensor.untyped_storage().nbytes():
        raise InputError(
            f"{kind} was given a tensor of {tensor.numel():,} elements that has no memory: give it "
            f"some first, tensor.untyped_storage().resize_({tensor.nbytes})"
        )
    return tensor.detach().contiguous()


def land(tensor: Tensor, buffer: Tensor, divide_by: int = 1) -> Tensor:
    """Copies the data that arrived in `buffer` into the caller's `tensor`."""
    if divide_by > 1:
        buffer.div_(divide_by)
    if buffer.data_ptr() != tensor.data_ptr():
        tensor.detach().copy_(buffer.view(tensor.shape))
    return tensor


def shape(tensor: Tensor) -> str:
    """ "float32 [3, 4]"."""
    return f"{_name(tensor.dtype)} {list(tensor.shape)}"


@lru_cache
def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
