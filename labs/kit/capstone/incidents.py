"""Track 4: 54 days of Llama 3's cluster, replayed under a policy.

    train ─ save ─ train ─ ✗ lost: all since the last save ─ restart ─ a node is slow … swap it ─ …

The policy is asked at the start, after each save and each restart, and decides when to save next
and whether to swap a slow node now. At the start it also says how many nodes stand by as spares.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from minitrain.planning.failures.replay import Site, interruptions, llama3_law, wait_for_node

HOUR, NODES, CHIPS = 3600.0, 2048, 16384


@dataclass(frozen=True)
class Trace:
    """`failures`: (second, does it take a node?); `slow`: (from, until, how many times as long a
    step takes), one after another. Seconds of a save, a restart, a swap; hours of a repair."""

    failures: tuple[tuple[float, bool], ...]
    slow: tuple[tuple[float, float, float], ...]
    end: float
    save: float
    restart: float = 480.0
    swap: float = 240.0
    repair: float = 24.0
    promised: float = 0.0  # seconds between failures, by the vendor
    node_share: float = 0.0  # of failures that take a node


@dataclass(frozen=True)
class View:
    """Known to the policy: seconds since the start, of past failures, and of the site."""

    now: float
    left: float
    failures: tuple[float, ...]
    swaps: int  # slow nodes swapped so far
    expected_between: float  # seconds, as the vendor promises
    node_share: float  # of failures that take a node
    save: float
    restart: float
    swap: float
    repair: float  # hours
    slow_for: float  # seconds since a node has become slow, 0 if none is
    factor: float  # and how many times as long a step takes


Policy = Callable[[View], tuple[float, bool, int]]  # seconds to the next save, swap now?, spares


def make_trace(
    seed: int, days: float = 54, rate: float = 1.0, save: float = 15.0, slow_every: float = 20.0,
    repair: float = 24.0,
) -> Trace:  # fmt: skip
    """rate: failures over the promised ones; slow_every: mean hours between slow nodes."""
    law, end, draw = llama3_law(), days * 24 * HOUR, np.random.default_rng([seed, 7])
    found = interruptions(law, int(CHIPS * rate), end, 0, seed)
    slow, now = [], 0.0
    while (now := now + draw.exponential(slow_every * HOUR)) < end:
        until = now + 600 * 10 ** draw.uniform(0, 2.2)  # ten minutes to a day
        slow.append((now, min(until, end), 1 + 0.02 * 10 ** draw.uniform(0, 1.4)))
        now = until
    nodes = sum(cause.per_chip_hour for cause in law.causes if cause.takes_node)
    known = {"promised": law.between(CHIPS), "node_share": law.chip_hours * nodes}
    failures = tuple((at, cause.takes_node) for at, cause in found)
    return Trace(failures, tuple(slow), end, save, repair=repair, **known)


def goodput(trace: Trace, policy: Policy) -> float:
    """The share of the time that went into work which counts; a spare node trains nothing."""
    now = good = 0.0
    swaps = 0
    failures, slow = deque(trace.failures), deque(trace.slow)
    past: list[float] = []
    away: list[float] = []  # when each node under repair comes back
    while now < trace.end:
        while slow and slow[0][1] <= now:
            slow.popleft()
        while failures and failures[0][0] <= now:  # the run was down already
            failures.popleft()
        save_in, swap, spares = policy(view_of(trace, now, past, swaps, slow))
        site = Site(spare_nodes=min(max(int(spares), 0), NODES), repair_hours=trace.repair)
        if swap and slow and slow[0][0] <= now:
            slow.popleft()
            swaps += 1
            now += trace.swap + wait_for_node(away, now, site)
            continue
        stop = min(now + max(float(save_in), 1.0), trace.end)
        at, takes_node = failures[0] if failures else (trace.end + trace.save, False)
        if at < min(stop + trace.save, trace.end):  # all since the last save is lost
            past.append(at)
            wait = wait_for_node(away, at, site) if takes_node else 0.0
            now = at + trace.restart + wait
            continue
        good += worked(now, stop, slow) * (1 - site.spare_nodes / NODES)
        now = stop + trace.save
    return good / trace.end


def view_of(trace: Trace, now: float, past: list[float], swaps: int, slow: deque) -> View:
    since, factor = (now - slow[0][0], slow[0][2]) if slow else (-1.0, 1.0)
    known = (max(since, 0.0), factor if since >= 0 else 1.0)
    site = (trace.save, trace.restart, trace.swap, trace.repair)
    return View(
        now, trace.end - now, tuple(past), swaps, trace.promised, trace.node_share, *site, *known
    )


def worked(start: float, stop: float, slow: deque) -> float:
    """Seconds of work at full speed from `start` to `stop`."""
    lost = 0.0
    for since, until, factor in slow:
        if since >= stop:
            break
        lost += (min(until, stop) - max(since, start)) * (1 - 1 / factor)
    return stop - start - lost


def clairvoyant(trace: Trace) -> float:
    """At least the goodput of one who knows the trace: saves end as a failure comes, a slow node
    is swapped in its first second if that pays at all, a spare comes when it is needed."""
    lost = up = 0.0
    for at, _ in trace.failures:
        if at >= up:
            lost += trace.restart + min(trace.save, at - up)
            up = at + trace.restart
    slow = (min(trace.swap, (b - a) * (1 - 1 / f)) for a, b, f in trace.slow)
    return 1 - (lost + sum(slow)) / trace.end


def ratio(trace: Trace, policy: Policy) -> float:
    """Goodput over the clairvoyant's, from 0 to 1."""
    return min(1.0, goodput(trace, policy) / clairvoyant(trace))
