"""Prometheus in a hundred lines: what was scraped, and which rules fire, as time goes on.

    condition   ...TTTTTTTTTT..      of one rule on one rank
    alert       ...ppppFFFFFF..      pending for `lasts`, then firing, until the condition ends

Every `interval` the newest values are scraped and the rules evaluated; a value stays what it was
until another comes, as an endpoint has it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from minitrain.monitoring.alerts.expressions import Vector, seconds_of
from minitrain.monitoring.alerts.rules import RULES, Rule
from minitrain.training.report import Sample


@dataclass(frozen=True)
class Alert:
    """A rule that fires on a rank; `since`: when it began to fire."""

    rule: Rule
    rank: int
    since: float
    value: float

    @property
    def name(self) -> str:
        return self.rule.name


@dataclass
class Series:
    """Values by growing time."""

    times: list[float] = field(default_factory=list)
    values: list[float] = field(default_factory=list)

    def add(self, time: float, value: float, keep: float) -> None:
        """Adds a value; values older than `keep` seconds are dropped once they are the majority."""
        self.times.append(time)
        self.values.append(value)
        old = bisect_left(self.times, time - keep)
        if 2 * old > len(self.times):
            del self.times[:old], self.values[:old]

    def since(self, time: float) -> np.ndarray:
        return np.array(self.values[bisect_left(self.times, time) :])


@dataclass
class Scrapes:
    """The scrapes of one run: the newest values, and the past that windows ask for."""

    now: float = 0.0
    newest: dict[int, Sample] = field(default_factory=dict)
    windows: dict[str, float] = field(default_factory=dict)  # seconds to keep, by name
    kept: dict[tuple[str, int], Series] = field(default_factory=dict)

    def add(self, now: float, newest: dict[int, Sample]) -> None:
        self.now, self.newest = now, newest
        for name, seconds in self.windows.items():
            for rank, value in self.latest(name).items():
                self.kept.setdefault((name, rank), Series()).add(now, value, seconds)

    def latest(self, name: str) -> Vector:
        return {r: float(sample[name]) for r, sample in self.newest.items() if name in sample}

    def window(self, name: str, seconds: float) -> dict[int, np.ndarray]:
        """By rank, the values scraped from `seconds` ago until now; asked for at each scrape, since
        what nobody asked for at the first one was not kept."""
        if name not in self.windows:
            for rank, value in self.latest(name).items():
                self.kept[name, rank] = Series([self.now], [value])
        self.windows[name] = max(seconds, self.windows.get(name, 0.0))
        return {
            rank: series.since(self.now - seconds)
            for (kept, rank), series in self.kept.items()
            if kept == name
        }


class Alerts:
    """`scrape(now, newest)`, in the order of time -> the alerts that fire; `fired`: all so far."""

    def __init__(self, rules: Sequence[Rule] = RULES) -> None:
        self.rules, self.scrapes = rules, Scrapes()
        self.firing: list[Alert] = []
        self.fired: list[Alert] = []  # each once, when it began
        self._since: dict[tuple[str, int], float] = {}  # the condition holds since
        self._begun: dict[tuple[str, int], Alert] = {}

    def scrape(self, now: float, newest: dict[int, Sample]) -> list[Alert]:
        self.scrapes.add(now, newest)
        self.firing = [alert for rule in self.rules for alert in self._of(rule, now)]
        return self.firing

    def _of(self, rule: Rule, now: float) -> Iterable[Alert]:
        held = rule.when.value(self.scrapes)
        assert isinstance(held, dict), f"the condition of {rule.name} is no vector"
        for key in [key for key in self._since if key[0] == rule.name and key[1] not in held]:
            del self._since[key]
            self._begun.pop(key, None)
        for rank, value in held.items():
            key = (rule.name, rank)
            since = self._since.setdefault(key, now)
            if now - since >= seconds_of(rule.lasts):
                if key not in self._begun:
                    self._begun[key] = Alert(rule, rank, now, value)
                    self.fired.append(self._begun[key])
                yield self._begun[key]
