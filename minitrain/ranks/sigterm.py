"""SIGTERM for a rank that waits for the others: it ends, and reports what it was waiting for.

Python runs its signal handlers between two bytecode steps of the main thread. A rank that waits in
torch takes no step, and would obey a `kill` only once its peers arrive, which may be never. So a
second thread reads the signal number from a socket, to which the interpreter writes it at once.

    no handler              launched: the kernel ends it, `launch` reports; in place: reports, ends
    a handler of its own    runs first: the rank must leave its wait within GRACE_SECONDS
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from types import FrameType

from minitrain.ranks.flight_recorder import COMPUTING, WAITING, FlightRecorder, Status
from minitrain.ranks.source import place_of

GRACE_SECONDS = 20.0  # for a handler that wants to save; torchrun kills after 30


@contextmanager
def signal_numbers() -> Iterator[socket.socket]:
    """A socket from which any thread may read, byte by byte, the signals that have handlers."""
    if hasattr(os, "register_at_fork"):  # else a forked loader worker would write here as well
        os.register_at_fork(after_in_child=partial(signal.set_wakeup_fd, -1))
    ours, interpreters = socket.socketpair()
    interpreters.setblocking(False)
    before = signal.set_wakeup_fd(interpreters.fileno())
    try:
        yield ours
    finally:
        signal.set_wakeup_fd(before)
        interpreters.close()  # which ends the reading thread


@contextmanager
def obeying_sigterm(recorder: FlightRecorder, rank: int) -> Iterator[None]:
    """Obeys SIGTERM inside the block, in a process that no launching process watches.

    Enter it in the main thread.
    """
    before = signal.getsignal(signal.SIGTERM)
    if before == signal.SIG_DFL:
        signal.signal(signal.SIGTERM, _left_to_the_thread)
    with signal_numbers() as numbers:
        threading.Thread(target=_listen, args=(numbers, recorder, rank), daemon=True).start()
        try:
            yield
        finally:
            signal.signal(signal.SIGTERM, before)


def _left_to_the_thread(number: int, frame: FrameType | None) -> None:
    pass


def _listen(numbers: socket.socket, recorder: FlightRecorder, rank: int) -> None:
    with numbers:
        while read := numbers.recv(64):
            if signal.SIGTERM in read:
                end_if_it_waits(recorder, rank)


def end_if_it_waits(recorder: FlightRecorder, rank: int) -> None:
    """Ends this process after SIGTERM, unless its own handler can soon do so."""
    is_handled = signal.getsignal(signal.SIGTERM) is not _left_to_the_thread
    deadline = time.monotonic() + GRACE_SECONDS * is_handled
    asked = now = recorder.status(recorder.rank)
    while time.monotonic() < deadline:
        if now.state == COMPUTING or now.version != asked.version:
            return
        time.sleep(0.05)
        now = recorder.status(recorder.rank)
    sys.stderr.write(f"rank {rank}: ended by SIGTERM {_doing(recorder, now)}\n")
    sys.stderr.flush()
    os._exit(128 + signal.SIGTERM)


def _doing(recorder: FlightRecorder, now: Status) -> str:
    if now.state == WAITING:
        words = recorder.words(recorder.rank, now.entry)
        return f"while it waited in {words}, {place_of(now.where)}"
    return "at work" if now.state == COMPUTING else "while it waited for all ranks to start"
