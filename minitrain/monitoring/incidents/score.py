"""Scores a set of rules: detection delay on planted incidents, false alarms on healthy runs.

    detect = lambda trace: [(time, name, rank), …]       yours: any rules, learned or written
    print(score(detect, seeds=range(40)))

An alarm before the incident begins, or in a healthy run, is false. Found is an incident that any
alarm follows: a fan that fails may be told by its heat or by the ranks that it slows down.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from statistics import median

from minitrain.monitoring.alerts.evaluate import Alerts
from minitrain.monitoring.alerts.rules import RULES, Rule
from minitrain.monitoring.incidents.traces import HEALTHY, MINUTES, Label, Trace, label, trace
from minitrain.words import seconds_text

Alarm = tuple[float, str, int]  # when, the rule's name, the rank
Detect = Callable[[Trace], Sequence[Alarm]]


@dataclass(frozen=True)
class Found:
    """One trace: what was in it, and what was said."""

    label: Label
    alarms: tuple[Alarm, ...]

    @property
    def false(self) -> tuple[Alarm, ...]:
        begins = self.label.begins
        return tuple(one for one in self.alarms if begins is None or one[0] < begins)

    @property
    def delay(self) -> float | None:
        """Seconds from the incident to the first alarm."""
        begins = self.label.begins
        after = [time for time, _, _ in self.alarms if begins is not None and time >= begins]
        return min(after) - begins if after else None

    @property
    def names(self) -> set[str]:
        """Names of the rules that fired on it."""
        return {name for time, name, _ in self.alarms if time >= (self.label.begins or 0)}


@dataclass(frozen=True)
class Score:
    found: list[Found] = field(repr=False)

    @property
    def planted(self) -> list[Found]:
        return [one for one in self.found if one.label.kind != HEALTHY]

    @property
    def detected(self) -> float:
        """The share of the incidents that were found."""
        delays = [one.delay for one in self.planted]
        return sum(delay is not None for delay in delays) / len(delays) if delays else 1.0

    @property
    def median_delay(self) -> float | None:
        """Seconds, of those that were found."""
        delays = [one.delay for one in self.planted if one.delay is not None]
        return median(delays) if delays else None

    @property
    def false_alarms(self) -> int:
        return sum(len(one.false) for one in self.found)

    @property
    def healthy_hours(self) -> float:
        """In which every alarm is false."""
        whole = [
            MINUTES * 60 if one.label.begins is None else one.label.begins for one in self.found
        ]
        return sum(whole) / 3600

    def __str__(self) -> str:
        delay = "–" if self.median_delay is None else seconds_text(self.median_delay)
        return (
            f"{self.detected:.0%} of {len(self.planted)} incidents found, {delay} after they began "
            f"in the median; {self.false_alarms} false alarms in {self.healthy_hours:.0f} hours"
        )


def score(detect: Detect, seeds: Iterable[int], kind: str | None = None) -> Score:
    """Over the traces of these seeds; `kind`: all of this one."""
    return Score([Found(label(seed, kind), tuple(detect(trace(seed, kind)))) for seed in seeds])


def detect_by(rules: Sequence[Rule] = RULES) -> Detect:
    """The detector that our table of rules is, or another one."""

    def detect(seen: Trace) -> list[Alarm]:
        alerts = Alerts(rules)
        for now, newest in seen.scrapes:
            alerts.scrape(now, newest)
        return [(alert.since, alert.name, alert.rank) for alert in alerts.fired]

    return detect
