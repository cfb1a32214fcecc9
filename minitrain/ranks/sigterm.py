"""SIGTERM for a rank that no launching process watches: it ends, also while it waits for others.

Python runs its signal handlers between two steps of the main thread. A rank that waits in torch
takes no step, and so would obey a `kill` only when its peers have come, which may be never. A
thread of its own reads what the interpreter writes to a socket at the signal itself.
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

from minitrain.ranks.flight_recorder import COMPUTING, WAITING, FlightRecorder, Status
from minitrain.ranks.source import place_of

GRACE_SECONDS = 20.0  # for a handler that wants to save first; torchrun kills after 30


@contextmanager
def obey_sigterm(recorder: FlightRecorder, rank: int) -> Iterator[None]:
    """While the block runs, SIGTERM ends this process and says what it waited in.

    At once where SIGTERM has no handler. A handler of the caller's goes first: then the rank must
    come out of its wait within GRACE_SECONDS.
    """
    if os.name != "posix" or threading.current_thread() is not threading.main_thread():
        yield
        return
    before, grace = signal.getsignal(signal.SIGTERM), GRACE_SECONDS
    if before == signal.SIG_DFL:
        signal.signal(signal.SIGTERM, lambda number, frame: None)  # the thread ends the process
        grace = 0.0
    ours, interpreters = socket.socketpair()
    interpreters.setblocking(False)
    wakeup = signal.set_wakeup_fd(interpreters.fileno())
    threading.Thread(target=_listen, args=(ours, recorder, rank, grace), daemon=True).start()
    try:
        yield
    finally:
        signal.set_wakeup_fd(wakeup)
        signal.signal(signal.SIGTERM, before)
        interpreters.close()  # which ends the thread


def _listen(signals: socket.socket, recorder: FlightRecorder, rank: int, grace: float) -> None:
    with signals:
        while numbers := signals.recv(64):
            if signal.SIGTERM in numbers:
                _end(recorder, rank, grace)


def _end(recorder: FlightRecorder, rank: int, grace: float) -> None:
    """Ends the process, unless within `grace` seconds it comes out of its wait."""
    asked, deadline = recorder.status(recorder.rank), time.monotonic() + grace
    now = asked
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
