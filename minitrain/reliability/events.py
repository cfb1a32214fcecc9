"""One log for all ranks: what happened, when, on which rank, as a line of JSON each.

    {"time": 1764.2, "event": "slow", "rank": 2, "step": 40, "seconds": 0.31, "median": 0.12}

A line is one write to a file that is opened for appending: lines of several processes do not mix,
and a kill leaves whole lines, but for the last (POSIX, local disks; over NFS give each node its own
file). Names of events: the modules that write them. Lab: e12.
"""

from __future__ import annotations

import errno
import json
import os
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class EventLog:
    """`rank` is who writes; `of(rank)` is the same log for another."""

    path: Path
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
        self.path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        try:
            if os.write(descriptor, line) < len(line):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def read(self, event: str | None = None) -> list[dict]:
        """All lines, or those of one event, in order; half a line, of a kill or a full disk, is
        left out."""
        found = []
        for line in self.path.read_text().splitlines() if self.path.is_file() else ():
            with suppress(ValueError):
                found.append(json.loads(line))
        return [line for line in found if event in (None, line["event"])]
