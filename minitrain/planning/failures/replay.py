"""Replays a cluster's months, interruption by interruption: time training and time lost, by cause.

    rate of a component = its count / chip-hours              maximum likelihood, if failures are
    between failures    = exponential, mean 1 / (rate x chips)     independent (a Poisson process)

Rates are fitted to Llama 3's 419 unexpected interruptions (table 5 of arXiv 2407.21783): 16,384
H100 in 54 days were 21.2 million chip-hours, one interruption in 50,677. The paper prints counts
but no times, so the exponential is an assumption; `shape` lets you try infant mortality (a Weibull
of shape below 1). Then each interruption is replayed:

    train ─ save ─ train ─ ✗ ─ find it ─ [a spare node, or wait for one] ─ load ─ redo ─ train …

The kind of failure decides which checkpoints survive: a process that died still has its own memory
(/dev/shm), a lost node its neighbour's, and the disk has everything. So each checkpoint level has
its own interval, and is used when the faster ones are gone. Published reference: Llama 3's 54 days
on 16,384 GPUs, 466 interruptions, over 90% effective time (arXiv 2407.21783, 3.3.4). Its restart
times are not published: 8 minutes here is a guess, and 6 to 11 stay within two points of 90%.
Cost: 17 µs an interruption, seen on one core. Lab: e12.
"""

from __future__ import annotations

import heapq
import math
from dataclasses import dataclass, fields

import numpy as np

from minitrain.errors import InputError
from minitrain.paths import data_dir
from minitrain.planning.hardware import read_table

LLAMA3_DAYS, LLAMA3_CHIPS, LLAMA3_PLANNED = 54, 16384, 47
HARDWARE = ("GPU", "Host", "Network")  # these replace the node; other failures only restart


@dataclass(frozen=True)
class Cause:
    """A cause of interruptions and its rate, `per_chip_hour`."""

    component: str
    category: str
    per_chip_hour: float

    @property
    def takes_node(self) -> bool:
        return self.category in HARDWARE


@dataclass(frozen=True)
class Law:
    """Interruption rates by cause, and the law of the times between them: exponential where `shape`
    is 1."""

    causes: tuple[Cause, ...]
    shape: float = 1.0

    def __post_init__(self) -> None:
        if not self.causes or self.shape <= 0:
            raise InputError(
                f"{len(self.causes)} causes, shape {self.shape}: give one cause or more, and a "
                "shape over 0, 1 for an exponential"
            )

    @property
    def chip_hours(self) -> float:
        """Chip-hours between two interruptions of one chip."""
        return 1 / sum(cause.per_chip_hour for cause in self.causes)

    def between(self, chips: int) -> float:
        """Mean seconds between interruptions of `chips` chips together."""
        return self.chip_hours * 3600 / chips

    def gaps(self, chips: int, count: int, seed: int = 0) -> np.ndarray:
        """(count,) seconds from one interruption to the next."""
        scale = self.between(chips) / math.gamma(1 + 1 / self.shape)
        return scale * np.random.default_rng(seed).weibull(self.shape, count)

    def draw(self, count: int, seed: int = 0) -> list[Cause]:
        """Draws the cause of each interruption by the causes' rates."""
        rates = np.array([cause.per_chip_hour for cause in self.causes])
        drawn = np.random.default_rng([seed, 1]).choice(len(rates), count, p=rates / rates.sum())
        return [self.causes[index] for index in drawn]


def llama3_law() -> Law:
    """The law fitted to `data/llama3_interruptions.csv`."""
    hours = LLAMA3_DAYS * 24 * LLAMA3_CHIPS
    rows = read_table(data_dir() / "llama3_interruptions.csv")
    return Law(tuple(Cause(r["component"], r["category"], int(r["count"]) / hours) for r in rows))


@dataclass(frozen=True)
class Level:
    """A kind of checkpoint: training stops for `save_seconds` every `interval`; loading takes
    `load_seconds`; `survives_node`: it is still there if a node is lost."""

    interval: float
    save_seconds: float
    load_seconds: float = 0.0
    survives_node: bool = True

    def __post_init__(self) -> None:
        if self.interval <= 0 or min(self.save_seconds, self.load_seconds) < 0:
            raise InputError(f"{self}: give an interval over 0, and seconds of 0 or more")


@dataclass(frozen=True)
class Site:
    """Recovery at a site. `restart_seconds`: to detect the failure and restart all ranks; `planned`
    interruptions are evenly spaced, each after a save; a node is away for `repair_hours`."""

    restart_seconds: float = 480.0
    spare_nodes: int | None = None  # None: always one available
    repair_hours: float = 24.0
    planned: int = 0


@dataclass
class Account:
    """Seconds by use, which add up to the total."""

    trained: float = 0.0
    saving: float = 0.0
    redone: float = 0.0  # trained, lost, and trained again
    restarting: float = 0.0
    waiting: float = 0.0  # for a node
    interruptions: int = 0

    @property
    def seconds(self) -> float:
        return self.trained + self.saving + self.redone + self.restarting + self.waiting

    @property
    def effective(self) -> float:
        """The share of time spent on useful training."""
        return self.trained / self.seconds


def replay(
    law: Law, chips: int, days: float, levels: tuple[Level, ...], site: Site, seed: int = 0
) -> Account:
    """`days` on `chips` chips, with the interruptions of one seed. Failures while the run is down
    are counted but cost nothing more."""
    if not any(level.survives_node for level in levels):
        raise InputError("no level survives a node: one that is lost would end the run; add a disk")
    end, account = days * 86400.0, Account()
    causes = interruptions(law, chips, end, site.planned, seed)
    away: list[float] = []  # when each node under repair comes back
    now = 0.0
    for at, cause in [*causes, (end, None)]:
        if at <= now:  # the run is already down
            account.interruptions += cause is not None
            continue
        loading = spend(account, at - now, levels, cause)
        now = at
        if cause is None:
            break
        account.interruptions += 1
        down = site.restart_seconds + loading
        if cause.takes_node and site.spare_nodes is not None:
            wait = wait_for_node(away, now, site)
            account.waiting += min(wait, end - now)
            now += wait
        account.restarting += max(0.0, min(down, end - now))
        now += down
    return account


PLANNED = Cause("planned", "Planned", 0.0)


def interruptions(
    law: Law, chips: int, end: float, planned: int, seed: int
) -> list[tuple[float, Cause]]:
    """Times of interruptions in seconds, with their causes."""
    count = int(2 * end / law.between(chips)) + 100
    times = np.cumsum(law.gaps(chips, count, seed))
    unexpected = list(zip(times[times < end].tolist(), law.draw(count, seed)))
    even = [(end * (i + 0.5) / planned, PLANNED) for i in range(planned)]
    return sorted([*unexpected, *even], key=lambda event: event[0])


def spend(account: Account, span: float, levels: tuple[Level, ...], cause: Cause | None) -> float:
    """Books `span` seconds since a start, up to a `cause` or, if None, the run's end -> seconds to
    load the checkpoint afterwards."""
    overhead = sum(level.save_seconds / (level.interval + level.save_seconds) for level in levels)
    trained = span * (1 - min(overhead, 1.0))
    account.saving += span - trained
    if cause is None or cause is PLANNED:
        account.trained += trained
        return min(level.load_seconds for level in levels) if cause else 0.0
    usable = [level for level in levels if level.survives_node or not cause.takes_node]
    newest = min(usable, key=lambda level: trained % level.interval)
    lost = trained % newest.interval  # before the first save: back to the starting point
    account.trained += trained - lost
    account.redone += lost
    return newest.load_seconds


def wait_for_node(away: list[float], now: float, site: Site) -> float:
    """Takes a spare node or waits for the first repair -> seconds."""
    while away and away[0] <= now:
        heapq.heappop(away)
    wait = 0.0
    if len(away) >= site.spare_nodes:
        wait = heapq.heappop(away) - now if away else site.repair_hours * 3600
    heapq.heappush(away, now + wait + site.repair_hours * 3600)
    return wait


def llama3_replay(
    levels: tuple[Level, ...] = (Level(578.0, 15.0),), site: Site | None = None, seed: int = 0
) -> Account:
    """Llama 3's 54 days; by default, saves of 15 s to disk at Young's interval."""
    site = site or Site(planned=LLAMA3_PLANNED)
    return replay(llama3_law(), LLAMA3_CHIPS, LLAMA3_DAYS, levels, site, seed)


def mean_account(accounts: list[Account]) -> Account:
    """The mean over several seeds."""
    names = [field.name for field in fields(Account)]
    return Account(*(float(np.mean([getattr(a, name) for a in accounts])) for name in names))
