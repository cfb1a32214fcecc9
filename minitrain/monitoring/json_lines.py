"""metrics.jsonl: one sample per line, readable while the file grows.

    {"time": 1764.2, "step": 41, "loss": 1.318, "parts": {"forward": 0.011, …}, …}
    pandas.read_json("runs/1M-corpus/metrics.jsonl", lines=True)

Rank 0 writes metrics.jsonl, rank 3 metrics.rank-3.jsonl: no rank waits for another, or for a
network. Each line is one write, so that a kill leaves whole lines except perhaps the last; on a
full disk lines are kept until there is room, and training continues. Numbers that JSON lacks are
"NaN" and "Infinity", as in protobuf's JSON.
"""

from __future__ import annotations

import errno
import json
import math
import os
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from minitrain.paths import write_atomically
from minitrain.training.report import Sample

METRICS_FILE = "metrics.jsonl"
NOT_FINITE = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
encoded = json.JSONEncoder(allow_nan=False).encode  # made once: json.dumps would make one per line


def metrics_file(folder: str | os.PathLike, rank: int = 0) -> Path:
    return Path(folder) / (METRICS_FILE if rank == 0 else f"metrics.rank-{rank}.jsonl")


def metrics_files(folder: str | os.PathLike) -> dict[int, Path]:
    """The files of a run, by rank."""
    others = Path(folder).glob("metrics.rank-*.jsonl")
    ranks = [int(path.stem.rpartition("-")[2]) for path in others if path.stem[-1].isdigit()]
    first = [0] if metrics_file(folder).is_file() else []
    return {rank: metrics_file(folder, rank) for rank in sorted([*first, *ranks])}


class JsonLines:
    """A sink. A resumed run drops the lines after `done_steps`, since it repeats those steps."""

    def __init__(self, path: str | os.PathLike, done_steps: int = 0) -> None:
        self.path, self.done_steps = Path(path), done_steps
        self.unwritten: list[bytes] = []  # lines for which there was no room
        self.file: int | None = None
        self.size = 0  # of the file, which has no other writer

    def __call__(self, sample: Sample) -> None:
        if self.file is None:  # not earlier: until a step is made, the folder may be another run's
            cut_log(self.path, self.done_steps)
            self.file = os.open(self.path, os.O_WRONLY | os.O_APPEND)
            self.size = os.fstat(self.file).st_size
        self.unwritten.append((to_json(sample) + "\n").encode())
        try:
            lines = b"".join(self.unwritten)
            if os.write(self.file, lines) < len(lines):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            self.size += len(lines)
            self.unwritten.clear()
        except OSError as error:  # a full disk: training continues
            os.ftruncate(self.file, self.size)  # no partial line
            if len(self.unwritten) == 1:
                print(f"\n{self.path}: {error.strerror}; its lines wait for room", file=sys.stderr)

    def close(self) -> None:
        if self.file is not None:
            os.close(self.file)
            self.file = None


def to_json(sample: Sample) -> str:
    try:
        return encoded(sample)
    except ValueError:
        return json.dumps(_spelled(sample))


def _spelled(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _spelled(each) for name, each in value.items()}
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    return value


def cut_log(path: Path, steps: int) -> None:
    """Keeps the lines of the first `steps` steps, and of sessions that ended by then."""
    kept, step = [], 0
    for sample in read_lines(path):
        step = sample.get("step", step)
        if 0 < step <= steps:
            kept.append(to_json(sample) + "\n")
    write_atomically(path, "".join(kept))


def read_lines(path: str | os.PathLike) -> Iterator[Sample]:
    """All samples; skips a partial line left by a kill."""
    with suppress(FileNotFoundError), open(path, "rb") as file:
        for line in file:
            with suppress(ValueError):
                yield parsed(line)


def parsed(line: bytes) -> Sample:
    """The sample in a line; ValueError if it is not a complete one."""
    sample = json.loads(line)
    if not isinstance(sample, dict):
        raise ValueError(f"a line holds {line[:40]!r} and no sample")
    return {k: NOT_FINITE.get(v, v) if isinstance(v, str) else v for k, v in sample.items()}
