"""A cluster's months, interruption by interruption: what trains, and where the other time goes.

    rate of a component = its count / chip-hours              the most likely one, if failures come
    between failures    = exponential, mean 1 / (rate x chips)     independently (Poisson's law)

Rates are fitted to Llama 3's 419 unexpected interruptions (table 5 of arXiv 2407.21783): 16,384
H100 in 54 days were 21.2 million chip-hours, one interruption in 50,677. The paper prints counts
and no times, so the exponential is assumed; what a wear-in (a Weibull of shape below 1) would
change can be tried with `shape`. Then each interruption is replayed:

    train ─ save ─ train ─ ✗ ─ find it ─ [a spare node, or wait for one] ─ load ─ redo ─ train …

The kind of a failure says what is left to go on from: a process that died has its own memory
(/dev/shm), a node that is lost its neighbour's, and the disk has everything. So each level of
checkpoint has an interval of its own, and is asked for what the faster ones cannot give. Published
to check against: Llama 3's 54 days on 16,384 GPUs, 466 interruptions, over 90% effective time
(arXiv 2407.21783, 3.3.4). How long its restarts took is not printed: 8 minutes here is a guess, and
6 to 11 stay within two points of 90%. Cost: 17 µs an interruption, seen on one core. Lab: e12.
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
HARDWARE = ("GPU", "Host", "Network")  # a node that failed so is replaced; the others start again


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
        """Between two interruptions of one chip."""
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
    """A kind of checkpoint: training stops for `save_seconds` every `interval`; `load_seconds`
    bring it back; `survives_node`: it is there when a node is not."""

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
    interruptions come evenly, each after a save; a node is away for `repair_hours`."""

    restart_seconds: float = 480.0
    spare_nodes: int | None = None  # None: always one there
    repair_hours: float = 24.0
    planned: int = 0


@dataclass
class Account:
    """Seconds, which add up to the whole time."""

    trained: float = 0.0
    saving: float = 0.0
    redone: float = 0.0  # trained, lost, and to be trained again
    restarting: float = 0.0
    waiting: float = 0.0  # for a node
    interruptions: int = 0

    @property
    def seconds(self) -> float:
        return self.trained + self.saving + self.redone + self.restarting + self.waiting

    @property
    def effective(self) -> float:
        """The share of the time that trains."""
        return self.trained / self.seconds


def replay(
    law: Law, chips: int, days: float, levels: tuple[Level, ...], site: Site, seed: int = 0
) -> Account:
    """`days` on `chips` chips, with the interruptions of one seed. What fails while the run is
    down is counted and costs nothing more."""
    if not any(level.survives_node for level in levels):
        raise InputError("no level survives a node: one that is lost would end the run; add a disk")
    end, account = days * 86400.0, Account()
    causes = interruptions(law, chips, end, site.planned, seed)
    away: list[float] = []  # when each node that is repaired comes back
    now = 0.0
    for at, cause in [*causes, (end, None)]:
        if at <= now:  # while the run was down; it does not fail twice
            account.interruptions += cause is not None
            continue
        span = min(at, end) - now
        lost = spend(account, span, levels, cause, is_end=at >= end)
        now = min(at, end)
        if now >= end:
            break
        account.interruptions += 1
        down = site.restart_seconds + lost
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


def spend(
    account: Account, span: float, levels: tuple[Level, ...], cause: Cause | None, is_end: bool
) -> float:
    """Books `span` seconds since a start -> the seconds that loading will take afterwards."""
    overhead = sum(level.save_seconds / (level.interval + level.save_seconds) for level in levels)
    trained = span * (1 - min(overhead, 1.0))
    account.saving += span - trained
    if is_end or cause is PLANNED:
        account.trained += trained
        return 0.0 if is_end else min(level.load_seconds for level in levels)
    usable = [level for level in levels if level.survives_node or not cause.takes_node]
    newest = min(usable, key=lambda level: trained % level.interval)
    lost = trained % newest.interval  # before the first save: back to what it started from
    account.trained += trained - lost
    account.redone += lost
    return newest.load_seconds


def wait_for_node(away: list[float], now: float, site: Site) -> float:
    """Takes a spare; where none is left, waits for the first to be repaired -> seconds."""
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
    """Its 54 days; the level is a disk's with saves of 15 s at Young's interval."""
    site = site or Site(planned=LLAMA3_PLANNED)
    return replay(llama3_law(), LLAMA3_CHIPS, LLAMA3_DAYS, levels, site, seed)


def mean_account(accounts: list[Account]) -> Account:
    """The mean over several seeds."""
    names = [field.name for field in fields(Account)]
    return Account(*(float(np.mean([getattr(a, name) for a in accounts])) for name in names))
