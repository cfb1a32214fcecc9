"""A run's history as the dashboard keeps it: curves of rank 0, the newest sample of every rank, the
alerts.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from minitrain.apps.watch.curve import Curve
from minitrain.apps.watch.tail import Tail
from minitrain.monitoring.alerts import Alerts
from minitrain.training.report import Sample

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
    """`look()` once a second; a finished run is read once, its alerts as they were then."""

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
        if self.ended is None and now > self.next + EVERY:  # what was so between the two samples
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
        """running, no step for a while, or how it ended."""
        if self.ended is not None:
            return self.ended
        if not self.newest:
            return "not begun"
        stalled = any(alert.name == "RunStalled" for alert in self.alerts.firing)
        return "stalled" if stalled else "running"
