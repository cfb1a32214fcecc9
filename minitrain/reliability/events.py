"""One log for all ranks: what happened, when, on which rank, one JSON line per event.

    {"time": 1764.2, "event": "slow", "rank": 2, "step": 40, "seconds": 0.31, "median": 0.12}

Each line is one write to a file opened for appending: lines of several processes do not mix, and
a kill leaves whole lines, except perhaps the last (POSIX, local disks; over NFS give each node its
own file). Names of events: see the modules that write them.

A rank killed by -9 writes nothing; the final events of the others identify it:

    rank 0   … all_reduce ✗ its peer is gone ─▶ log: "cut off"
    rank 1   … kill -9                          nothing
    rank 2   … raises an error               ─▶ log: "failed", and the error
    all ranks, started again                 ─▶ log: "silent", rank 1

A session begins with "began" or "resumed" and its number of ranks, which rank 0 writes. A rank
without time for a final event is silent too: on a node that lost power, or killed by a scheduler
because another had died. So look first at a rank that is the only silent one. Lab: e12.
"""

from __future__ import annotations

import errno
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from minitrain.ranks.errors import ConnectionLost

BEGINNINGS = ("began", "resumed")
LAST_WORDS = ("cut off", "failed", "waits", "stuck")


@dataclass(frozen=True)
class EventLog:
    """The log as written by `rank`; `of(rank)` is the same log for another rank."""

    path: str | os.PathLike
    rank: int = 0

    def of(self, rank: int) -> EventLog:
        return EventLog(self.path, rank)

    def write(self, event: str, step: int | None = None, **details: Any) -> None:
        """`details` are plain values. The line is on disk when it returns; if it cannot be written
        it goes to stderr, since a full disk must not end the run."""
        line = {"time": time.time(), "event": event, "rank": self.rank, "step": step, **details}
        try:
            self._append((json.dumps(line) + "\n").encode())
        except OSError as error:
            print(f"{self.path}: {error.strerror}: {json.dumps(line)}", file=sys.stderr)

    def _append(self, line: bytes) -> None:
        Path(self.path).parent.mkdir(parents=True, exist_ok=True)
        with open(self.path, "ab", buffering=0) as file:
            if file.write(line) < len(line):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            os.fsync(file.fileno())

    def read(self, event: str | None = None) -> list[dict]:
        """All lines, or those of one event, in order; skips a partial line, from a kill or a full
        disk."""
        found, path = [], Path(self.path)
        for line in path.read_text().splitlines() if path.is_file() else ():
            with suppress(ValueError):
                found.append(json.loads(line))
        return [line for line in found if event in (None, line["event"])]


@contextmanager
def last_words(log: EventLog, step: Callable[[], int]) -> Iterator[None]:
    """Logs what ends this rank within the block: its own error, or a lost peer. `step()` returns
    the last completed step."""
    try:
        yield
    except ConnectionLost:
        log.write("cut off", step())
        raise
    except BaseException as error:
        said = f"{type(error).__name__}: {error}".splitlines()[0]
        log.write("failed", step(), said=said)
        raise


def silent_ranks(log: EventLog) -> list[int]:
    """The ranks of the last session without a final event; [] if none has one: the run ended well,
    or all ranks were killed at once."""
    lines = log.read()
    begun = [place for place, line in enumerate(lines) if line["event"] in BEGINNINGS]
    if not begun:
        return []
    session = lines[begun[-1]]
    spoke = {line["rank"] for line in lines[begun[-1] :] if line["event"] in LAST_WORDS}
    return [rank for rank in range(session["ranks"]) if rank not in spoke] if spoke else []
