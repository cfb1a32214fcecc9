"""One log for all ranks: what happened, when, on which rank, as a line of JSON each.

    {"time": 1764.2, "event": "slow", "rank": 2, "step": 40, "seconds": 0.31, "median": 0.12}

A line is one write to a file that is opened for appending: lines of several processes do not mix,
and a kill leaves whole lines, but for the last (POSIX, local disks; over NFS give each node its own
file). Names of events: the modules that write them. Lab: e12.
"""

from __future__ import annotations

import json
import os
import time
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
        """`details` are plain values. On the disk when it returns."""
        line = {"time": time.time(), "event": event, "rank": self.rank, "step": step, **details}
        self.path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        try:
            os.write(descriptor, (json.dumps(line) + "\n").encode())
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def read(self, event: str | None = None) -> list[dict]:
        """All lines, or those of one event, in order; half a line at the end is left out."""
        text = self.path.read_text() if self.path.is_file() else ""
        lines = [json.loads(line) for line in text.splitlines(True) if line.endswith("\n")]
        return [line for line in lines if event in (None, line["event"])]
