"""A run's history: growing files, curves of rank 0, each rank's newest sample, the alerts.

Curves of any length are kept as a few hundred points with mean, min and max: when there are too
many, neighbours are merged in pairs, so that a one-step spike in a million is still visible.
"""

from __future__ import annotations

import math
import os
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, NamedTuple

from minitrain.errors import InputError
from minitrain.monitoring.alerts import Alerts
from minitrain.monitoring.json_lines import METRICS_FILE, metrics_files, parsed
from minitrain.training.report import Sample

MOST = 120


class Point(NamedTuple):
    x: float  # of its last value
    mean: float
    low: float
    high: float


@dataclass
class Curve:
    """Add values by growing x; non-finite ones are counted and skipped."""

    points: list[Point] = field(default_factory=list)
    stride: int = 1  # values per point
    not_finite: int = 0
    _open: list[float] = field(default_factory=list)
    _x: float = 0.0

    def add(self, x: float, value: float) -> None:
        if not math.isfinite(value):
            self.not_finite += 1
            return
        self._open.append(value)
        self._x = x
        if len(self._open) == self.stride:
            self.points.append(self._closed())
            self._open.clear()
            if len(self.points) == MOST:
                pairs = zip(self.points[::2], self.points[1::2])
                self.points, self.stride = [_join(a, b) for a, b in pairs], 2 * self.stride

    def zeros(self) -> Curve:
        """A curve of equal length, all 0, for a part that starts late."""
        points = [Point(point.x, 0.0, 0.0, 0.0) for point in self.points]
        return Curve(points, self.stride, 0, [0.0] * len(self._open), self._x)

    def seen(self) -> list[Point]:
        """The points, including the incomplete last one."""
        return [*self.points, self._closed()] if self._open else self.points

    def _closed(self) -> Point:
        values = self._open
        return Point(self._x, sum(values) / len(values), min(values), max(values))


def _join(a: Point, b: Point) -> Point:
    return Point(b.x, (a.mean + b.mean) / 2, min(a.low, b.low), max(a.high, b.high))


RUN_FILES = ("run.json", "finetune.json")  # written before a run's first step
MOST_BYTES = 16 * 2**20  # read from the end of a file at the first look


class Tail:
    """`look()` -> [(rank, sample), …], new since the last call, by time.

    A file that shrank or was replaced was cut by a resumed run: all are reread.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.places: dict[int, int] = {}  # bytes read
        self.inodes: dict[int, int] = {}
        self.began_anew = 0  # times

    def look(self) -> list[tuple[int, Sample]]:
        found: list[tuple[int, Sample]] = []
        with ExitStack() as stack:
            files = {}
            for rank, path in metrics_files(self.folder).items():
                with suppress(FileNotFoundError):
                    files[rank] = stack.enter_context(path.open("rb"))
            if any(self._is_another(rank, file) for rank, file in files.items()):
                self.places, self.inodes, self.began_anew = {}, {}, self.began_anew + 1
            for rank, file in files.items():
                found += [(rank, sample) for sample in self._new(rank, file)]
        found.sort(key=lambda pair: pair[1].get("time", 0.0))
        return found

    def _is_another(self, rank: int, file: BinaryIO) -> bool:
        """True if the file was replaced or cut."""
        now = os.fstat(file.fileno())
        known = self.inodes.get(rank, now.st_ino)
        return now.st_ino != known or now.st_size < self.places.get(rank, 0)

    def _new(self, rank: int, file: BinaryIO) -> Iterator[Sample]:
        now = os.fstat(file.fileno())
        place = self.places.get(rank, max(0, now.st_size - MOST_BYTES))
        file.seek(place)
        text = file.read(now.st_size - place)
        whole = text.rfind(b"\n") + 1  # an incomplete line is reread
        self.places[rank], self.inodes[rank] = place + whole, now.st_ino
        for line in text[:whole].splitlines():
            with suppress(ValueError):
                yield parsed(line)


def open_run(folder: Path) -> Path:
    """The folder, if it is a run's; else InputError."""
    if metrics_files(folder) or any((folder / name).is_file() for name in RUN_FILES):
        return folder
    what = "is not there" if not folder.is_dir() else f"holds no {METRICS_FILE}"
    raise InputError(f"{folder} {what}: give the folder of a run, such as runs/1M-corpus")


EVERY = 5.0  # seconds between two looks at the rules
CURVES = (
    "loss",
    "held_out",
    "grad_norm",
    "tokens_per_second",
    "step_seconds",
    "sent_bytes",
    "memory_bytes",
    "gpu_power_watts",
    "gpu_temperature_celsius",
    "gpu_utilisation",
)


class History:
    """Call `look()` once a second; a finished run is read once, with the alerts of its time."""

    def __init__(self, folder: Path, clock: Callable[[], float] = time.time) -> None:
        self.folder, self.clock = folder, clock
        self.tail = Tail(folder)
        self._begin()

    def _begin(self) -> None:
        self.alerts = Alerts()
        self.curves: dict[str, Curve] = {name: Curve() for name in CURVES}
        self.parts: dict[str, Curve] = {}  # seconds of each step, by part
        self.totals: Counter[str] = Counter()  # the same, added up
        self.newest: dict[int, Sample] = {}
        self.ended: str | None = None
        self.next = 0.0  # look at the rules
        self.looks = 0  # that found something

    def look(self) -> bool:
        """Reads new samples; True if there were any."""
        before = self.tail.began_anew
        found = self.tail.look()
        if self.tail.began_anew != before:
            self._begin()
        for rank, sample in found:
            self._add(rank, sample)
        if self.ended is None:
            self._scrape(self.clock())
        self.looks += bool(found)
        return bool(found)

    def _add(self, rank: int, sample: Sample) -> None:
        now = sample.get("time", 0.0)
        if self.ended is None and now > self.next + EVERY:  # as if between the two samples
            self._scrape(now)
        self.newest[rank] = self.newest.get(rank, {}) | sample
        if "ended" in sample:
            self.next = now  # a last look at the rules
        self._scrape(now)
        if rank == 0:
            self.ended = sample.get("ended")
            self._draw(sample)

    def _draw(self, sample: Sample) -> None:
        x = self.newest[0].get("step", 0)
        for name in CURVES:
            if name in sample:
                self.curves[name].add(x, sample[name])
        parts = sample.get("parts", {})
        self.totals.update(parts)
        for part in parts:
            if part not in self.parts:
                other = next(iter(self.parts.values()), Curve())
                self.parts[part] = other.zeros()
        for part, curve in self.parts.items():
            if parts:
                curve.add(x, parts.get(part, 0.0))

    def _scrape(self, now: float) -> None:
        if now >= self.next and self.newest:
            self.next = now + EVERY
            self.alerts.scrape(now, self.newest)

    @property
    def state(self) -> str:
        """not begun, running, stalled, or how it ended."""
        if self.ended is not None:
            return self.ended
        if not self.newest:
            return "not begun"
        stalled = any(alert.name == "RunStalled" for alert in self.alerts.firing)
        return "stalled" if stalled else "running"
