"""One log for all ranks: what happened, when, on which rank, as a line of JSON each.

    {"time": 1764.2, "event": "slow", "rank": 2, "step": 40, "seconds": 0.31, "median": 0.12}

A line is one write to a file that is opened for appending: lines of several processes do not mix,
and a kill leaves whole lines, but for the last (POSIX, local disks; over NFS give each node its own
file). Names of events: the modules that write them.

A rank that is killed by -9 writes nothing; the last words of the others name it:

    rank 0   … all_reduce ✗ its peer is gone ─▶ log: "cut off"
    rank 1   … kill -9                          nothing
    rank 2   … raises an error               ─▶ log: "failed", and the error
    all ranks, started again                 ─▶ log: "silent", rank 1

A session begins with "began" or "resumed" and its number of ranks, which rank 0 writes. A rank that
had no time for a word is silent as well: on a node that lost its power, or killed by a scheduler
because another had died. So look first at a rank that is silent alone. Lab: e12.
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
    """The log as `rank` writes it; `of(rank)` is the same log for another."""

    path: str | os.PathLike
    rank: int = 0

    def of(self, rank: int) -> EventLog:
        return EventLog(self.path, rank)

    def write(self, event: str, step: int | None = None, **details: Any) -> None:
        """`details` are plain values. On the disk when it returns; where it cannot be written, on
        stderr: a full disk is what a log is for, and must not end the run."""
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
        """All lines, or those of one event, in order; half a line, of a kill or a full disk, is
        left out."""
        found, path = [], Path(self.path)
        for line in path.read_text().splitlines() if path.is_file() else ():
            with suppress(ValueError):
                found.append(json.loads(line))
        return [line for line in found if event in (None, line["event"])]


@contextmanager
def last_words(log: EventLog, step: Callable[[], int]) -> Iterator[None]:
    """Writes what ends this rank within the block: its own error, or a peer that is gone. `step()`:
    the last one that is done."""
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
    """The ranks of the last session that wrote no last word; [] where none did: the run ended well,
    or all of it was killed at once."""
    lines = log.read()
    begun = [place for place, line in enumerate(lines) if line["event"] in BEGINNINGS]
    if not begun:
        return []
    session = lines[begun[-1]]
    spoke = {line["rank"] for line in lines[begun[-1] :] if line["event"] in LAST_WORDS}
    return [rank for rank in range(session["ranks"]) if rank not in spoke] if spoke else []
