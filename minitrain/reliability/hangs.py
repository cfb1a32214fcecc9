"""Hanging ranks: the others log the operation they wait in and exit, so that all are restarted.

    rank 0   … all_reduce ···· 60 s ─▶ log: "waits", in all_reduce, at line 12     ─▶ exit 75
    rank 1   … stuck in its own code ─▶ log: "stuck", at work since 60 s, line 31  ─▶ exit 75
    rank 2   … stopped by the system: logs nothing, and is therefore named

A thread in each rank watches the training thread. `launch` reports deadlocks among its own ranks at
once; this is for torchrun, which restarts when a process ends, not when it hangs. Cost: one check
a second. NCCL's flight recorder and watchdog do the same. Lab: e12.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from minitrain.errors import InputError
from minitrain.ranks.flight_recorder import WAITING
from minitrain.ranks.group import Group
from minitrain.ranks.source import place_of
from minitrain.reliability.events import EventLog

HUNG = 75  # the exit code; Slurm scripts requeue on it (EX_TEMPFAIL)
GRACE_SECONDS = 1.0  # between the log and the exit, for the others to log theirs


@contextmanager
def hangs_watched(group: Group, log: EventLog, seconds: float = 300.0) -> Iterator[None]:
    """Within the block, this rank exits with `HUNG` once it has started no operation, or waited in
    one, for `seconds`: choose more than the longest step, evaluation and save."""
    if seconds <= 0:
        raise InputError(f"seconds={seconds}: give how long a rank may take, over 0")
    over = threading.Event()
    arguments = (group, log.of(group.rank), seconds, over, threading.get_ident())
    thread = threading.Thread(target=_watch, args=arguments, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def _watch(group: Group, log: EventLog, seconds: float, over: threading.Event, trains: int) -> None:
    recorder = group.recorder
    version, since = -1, time.monotonic()
    while not over.wait(min(1.0, seconds / 10)):
        status = recorder.status(recorder.rank)
        if status.version != version:
            version, since = status.version, time.monotonic()
        elif time.monotonic() - since > seconds:
            if status.state == WAITING:
                words = recorder.words(recorder.rank, status.entry)
                log.write("waits", operation=words, at=place_of(status.where), seconds=seconds)
            else:
                log.write("stuck", at=_line_of(trains), seconds=seconds)
            time.sleep(GRACE_SECONDS)
            os._exit(HUNG)


def _line_of(thread: int) -> str:
    """The line that a thread is executing."""
    frame = sys._current_frames().get(thread)
    return f"{frame.f_code.co_filename}:{frame.f_lineno}" if frame else "its end"


def suspects(log: EventLog, ranks: int) -> list[int]:
    """The ranks to check after the last hang in the log: those that were stuck or logged nothing.
    A waiting rank is a victim."""
    last = {e["rank"]: e["event"] for e in log.read() if e["event"] in ("waits", "stuck")}
    return [rank for rank in range(ranks) if last.get(rank) != "waits"] if last else []
