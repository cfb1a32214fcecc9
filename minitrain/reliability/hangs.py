"""A rank that no longer comes: the others say what they wait in, and end, so that all start anew.

    rank 0   … all_reduce ···· 60 s ─▶ log: "waits", in all_reduce, at line 12     ─▶ exit 75
    rank 1   … stuck in its own code ─▶ log: "stuck", at work since 60 s, line 31  ─▶ exit 75
    rank 2   … stopped by the system: says nothing, and is therefore named

A thread in each rank looks on: the one that trains takes no steps. `launch` reports deadlocks among
its own ranks at once; this is for torchrun, which restarts when a process ends, not when it hangs.
Cost: a look every second. What NCCL's flight recorder and watchdog do. Lab: e12.
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

HUNG = 75  # the exit code; Slurm's scripts requeue by it (EX_TEMPFAIL)
GRACE_SECONDS = 1.0  # between the log and the end, for the others to say theirs


@contextmanager
def hangs_watched(group: Group, log: EventLog, seconds: float = 300.0) -> Iterator[None]:
    """Within the block this rank ends with `HUNG` when it has started no operation, or waited for
    one, for `seconds`: give more than the longest step, evaluation and save."""
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
    """The line at which that thread is."""
    frame = sys._current_frames().get(thread)
    return f"{frame.f_code.co_filename}:{frame.f_lineno}" if frame else "its end"


def suspects(log: EventLog, ranks: int) -> list[int]:
    """The ranks to look at after a hang: who was stuck, and who had nothing to say; who waits is
    a victim. Of the last hang in the log."""
    said = {
        line["rank"]: line["event"] for line in log.read() if line["event"] in ("waits", "stuck")
    }
    return [rank for rank in range(ranks) if said.get(rank) != "waits"] if said else []
