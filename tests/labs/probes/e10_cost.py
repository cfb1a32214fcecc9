"""The probes of lab e10: what runs in the sandbox, beside a submission on cost.

Nothing here knows what is expected: the verdicts, in test_e10_cost.py, are made from
what comes back.
"""

from __future__ import annotations

import random
from dataclasses import asdict, astuple, dataclass

from .in_turn import in_turn


def called_each(f, calls):
    """Calls in a row: what each gave, and that again after the last one."""

    def plainly(*arguments):
        out = f(*arguments)
        return tuple(out) if isinstance(out, tuple) else out

    found = in_turn(plainly, calls)
    return [{"out": c["out"], "later": c["later"], "given": [], "shares": False} for c in found]


SHARES = (0.2, 0.4, 0.6, 0.8, 0.9, 0.9199, 0.92, 0.9201, 0.94, 0.97, 1.0, 1.01, 1.5)
CUT = ("tp", "pp", "dp", "zero", "recompute", "micro_batch")


def memory_by(seed, cut, chip_bytes):
    """What a plan is said to need: any share of the chip, always the same for the same plan."""
    return random.Random(f"{seed} memory {tuple(cut)}").choice(SHARES) * chip_bytes


def seconds_by(seed, cut):
    """So its seconds, of which several plans may have the same."""
    return random.Random(f"{seed} seconds {tuple(cut)}").randint(8, 60) / 8


def cut_of(run):
    return [getattr(run.plan, name) for name in CUT]


def searched(f, searches):
    """Searches in a row: the plans that come back, and what was asked for memory and time."""
    return [search(f, *each) for each in searches]


def search(f, given, seed, heavy, best):
    """given: model, chip, gpus, seq, batch; heavy: a factor on all memory; best: [] is the default."""
    asked, timed, rest, seconds = [], [], [], []

    def memory_of(run):
        asked.append(cut_of(run))
        plan = {k: v for k, v in asdict(run.plan).items() if k not in CUT}
        own = {"seq": run.seq, "batch": run.global_batch, "chip": run.chip.name}
        rest.append({**own, "model": list(astuple(run.model)), **plan})
        return heavy * memory_by(seed, cut_of(run), run.chip.memory)

    def seconds_of(run):
        timed.append(cut_of(run))
        seconds.append(seconds_by(seed, cut_of(run)))
        return seconds[-1]

    found = [cut_of(run) for run in f(*given, memory_of, seconds_of, *best)]
    return {"found": found, "asked": asked, "rest": rest, "timed": timed, "seconds": seconds}


@dataclass(frozen=True)
class Choice:
    label: str
    days: float
    usd: float


def fronts_of(f, fronts):
    """Calls in a row, of choices as (days, dollars); whatever comes back is written so again."""
    calls = [([Choice(str(i), *point) for i, point in enumerate(points)],) for points in fronts]
    return [
        {
            "out": points_of(call["out"]),
            "later": points_of(call["later"]),
            "given": [points_of(call["given"][0])],
            "shares": False,
        }
        for call in in_turn(f, calls)
    ]


def points_of(choices):
    return [[choice.days, choice.usd] for choice in choices]


def counted(most):
    """A kind of number of which no more than so many pairs can be compared."""
    made = 0

    def counting(name):
        compare = getattr(float, name)

        def method(self, other):
            nonlocal made
            made += 1
            if made > most:
                raise RuntimeError(f"more than {most:,} comparisons of dollars")
            return compare(self, other)

        return method

    names = ("__lt__", "__le__", "__gt__", "__ge__", "__eq__", "__ne__")
    own = {name: counting(name) for name in names}
    return type("Counted", (float,), {**own, "__hash__": float.__hash__})


def front_by_comparisons(f, points, most):
    """One call; it fails where it compares dollars more often than `most` times."""
    kind = counted(most)
    choices = [Choice(str(i), days, kind(usd)) for i, (days, usd) in enumerate(points)]
    return [[float(x) for x in point] for point in points_of(f(choices))]
