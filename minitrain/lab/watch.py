"""Follows one run from the grader's side: collects what comes, and holds the totals.

The child cannot be asked to stop; it is watched. Wall-clock, the number of processes, their private
memory, the bytes printed and the bytes returned each have a limit, and going over any of them ends
the run with that cause. Output beyond the limit is thrown away, never stored.
"""

from __future__ import annotations

import os
import selectors
import socket
import sys
import time
from contextlib import suppress
from dataclasses import dataclass, field

import psutil

from minitrain.lab.limits import Limits
from minitrain.lab.zygote import STATUS

LOOK_EVERY = 0.04  # seconds between two counts of processes and memory
LINGER = 1.0  # seconds for the zygote to clear up before the whole sandbox is killed
KEPT_OUTPUT = 16 * 1024
PAGE = os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 4096


@dataclass
class Outcome:
    """What a run left: `cause` is None, or timeout, memory, processes, output, reply, died."""

    reply: bytearray = field(default_factory=bytearray)
    output: bytearray = field(default_factory=bytearray)
    printed_bytes: int = 0
    status: int | None = None  # as os.waitpid gives it; None: the zygote itself did not answer
    cause: str | None = None


def follow(
    control: socket.socket,
    reply: int,
    output: int,
    zygote: psutil.Process,
    limits: Limits,
    seconds: float,
) -> Outcome:
    """Until the zygote says that nothing is left of the run, or does not say so in time."""
    outcome = Outcome()
    deadline, look, stop_by = time.monotonic() + seconds, 0.0, float("inf")
    with selectors.DefaultSelector() as selector:
        for source in (control, reply, output):
            selector.register(source, selectors.EVENT_READ)
        while outcome.status is None and outcome.cause != "died" and time.monotonic() < stop_by:
            for key, _ in selector.select(LOOK_EVERY):
                _take(key.fileobj, selector, control, reply, outcome)
            now = time.monotonic()
            if outcome.cause is None and outcome.status is None and now > look:
                outcome.cause = _excess(outcome, zygote, limits, now > deadline)
                look = now + LOOK_EVERY
                if outcome.cause:
                    with suppress(OSError):
                        control.send(b"K")
                    stop_by = now + LINGER
        if outcome.status is not None:
            _drain(selector, control, reply, outcome)
    return outcome


def _take(
    source: object,
    selector: selectors.BaseSelector,
    control: socket.socket,
    reply: int,
    outcome: Outcome,
) -> None:
    if source is control:
        with suppress(ConnectionError):
            message = control.recv(STATUS.size)
            if len(message) == STATUS.size:
                (outcome.status,) = STATUS.unpack(message)
                return
        outcome.cause = outcome.cause or "died"
        return
    data = os.read(int(source), 1 << 18)  # type: ignore[call-overload]
    if not data:
        selector.unregister(source)  # type: ignore[arg-type]
    elif source == reply:
        outcome.reply += data if outcome.cause is None else b""
    else:
        outcome.printed_bytes += len(data)
        outcome.output += data
        del outcome.output[:-KEPT_OUTPUT]


def _drain(
    selector: selectors.BaseSelector, control: socket.socket, reply: int, outcome: Outcome
) -> None:
    """What is still in the pipes after the end."""
    selector.unregister(control)
    while selector.get_map():
        ready = selector.select(0.2)
        if not ready:
            return
        for key, _ in ready:
            _take(key.fileobj, selector, control, reply, outcome)


def _excess(outcome: Outcome, zygote: psutil.Process, limits: Limits, late: bool) -> str | None:
    if late:
        return "timeout"
    if outcome.printed_bytes > limits.output_bytes:
        return "output"
    if len(outcome.reply) > limits.reply_bytes:
        return "reply"
    family = family_of(zygote)
    if len(family) > limits.processes:
        return "processes"
    return "memory" if sum(map(private_bytes, family)) > limits.memory_bytes else None


def family_of(process: psutil.Process) -> list[psutil.Process]:
    """All that descend from it; empty when it is gone."""
    try:
        return process.children(recursive=True)
    except psutil.Error:
        return []


def private_bytes(process: psutil.Process) -> int:
    """Memory of its own: resident, without what it shares with others through files."""
    try:
        if sys.platform == "linux":
            with open(f"/proc/{process.pid}/statm") as file:
                resident, shared = file.read().split()[1:3]
            return (int(resident) - int(shared)) * PAGE
        return process.memory_info().rss
    except (OSError, psutil.Error, ValueError):
        return 0  # it has just ended
