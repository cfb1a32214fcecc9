"""Limits of one run of a submission: time, memory, processes, files, output.

The kernel enforces the limits per process (`apply`, in the child, before the submission is loaded);
the grader's own process enforces the totals, which no process can lift: wall-clock, the sum of
memory, the number of processes, the bytes printed and returned (`tests/grader/sandbox/watch.py`).
"""

from __future__ import annotations

import sys
from dataclasses import asdict, dataclass

import psutil

GB = 2**30
FOLDERS = ("TMPDIR", "HOME", "TORCHINDUCTOR_CACHE_DIR")  # variables that name a writable folder


@dataclass(frozen=True)
class Limits:
    """Defaults leave an honest solution of any lab ten times what it needs."""

    seconds: float = 4.0  # wall-clock of one run
    after_hang: float = 1.2  # and of later runs of an exercise that has hung
    exercise_seconds: float = 20.0  # of all runs of an exercise together
    memory_bytes: int = 3 * GB  # private memory of all its processes together
    processes: int = 64
    file_bytes: int = 64 * 2**20  # of one file
    disk_bytes: int = 256 * 2**20  # of all its files
    output_bytes: int = 4 * 2**20
    reply_bytes: int = 256 * 2**20

    @property
    def too_large(self) -> str:
        return f"what it returns is larger than {self.reply_bytes / 2**20:.0f} MB"

    def fitted(self) -> Limits:
        """Limits for this machine: at most half of its memory."""
        half = psutil.virtual_memory().total // 2
        return Limits(**{**asdict(self), "memory_bytes": min(self.memory_bytes, half)})


# For batch grading, with other submissions on the same cores.
PATIENT = Limits(seconds=20.0, after_hang=5.0, exercise_seconds=90.0)


def apply(limits: Limits) -> None:
    """Sets permanent kernel limits for this process and its children: hard limits cannot be
    raised."""
    import resource  # not on Windows, where there is no sandbox

    cpu = int(4 * limits.seconds) + 4
    mapped = psutil.Process().memory_info().vms + limits.memory_bytes + GB
    _limit(resource.RLIMIT_CPU, cpu)
    _limit(resource.RLIMIT_FSIZE, limits.file_bytes)
    _limit(resource.RLIMIT_CORE, 0)
    _limit(resource.RLIMIT_NOFILE, 512)
    if sys.platform == "linux":
        _limit(resource.RLIMIT_AS, mapped)
        _limit(resource.RLIMIT_NPROC, _threads_of_this_user() + 12 * limits.processes)


def _limit(kind: int, value: int) -> None:
    import resource

    hard = resource.getrlimit(kind)[1]
    value = value if hard == resource.RLIM_INFINITY else min(value, hard)
    resource.setrlimit(kind, (value, value))


def _threads_of_this_user() -> int:
    """The kernel counts a user's threads, here and elsewhere, against the limit on processes."""
    me, total = psutil.Process().username(), 0
    for process in psutil.process_iter(["username", "num_threads"]):
        if process.info["username"] == me:
            total += process.info["num_threads"] or 0
    return total
