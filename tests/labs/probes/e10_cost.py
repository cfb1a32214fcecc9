"""The probes of lab e10: what runs in the sandbox, beside a submission on cost.

Nothing here knows what is expected: the verdicts, in test_e10_cost.py, are made from
what comes back.
"""

from __future__ import annotations

from types import SimpleNamespace


def called(f, *arguments):
    return f(*arguments)


def called_each(f, calls):
    return [f(*arguments) for arguments in calls]


def searched(f, model, chip, gpus, seq, batch, memories, seconds, best):
    """The plans that come back, and which were asked for their memory and for their time."""
    asked, timed = [], []

    def plain(run):
        plan = run.plan
        cut = [plan.tp, plan.pp, plan.dp, plan.zero, plan.recompute, plan.micro_batch]
        return [*cut, plan.sp]

    def memory_of(run):
        asked.append([*plain(run), run.seq, run.global_batch])
        return memories.get(tuple(plain(run)[:6]), 0.0)

    def seconds_of(run):
        timed.append(plain(run)[:6])
        return seconds.get(tuple(plain(run)[:6]), 1.0)

    found = f(model, chip, gpus, seq, batch, memory_of, seconds_of, best)
    return {"found": [plain(run)[:6] for run in found], "asked": asked, "timed": timed}


def front_of(f, points):
    """The kept points; what f is given has .days and .usd."""
    choices = [SimpleNamespace(label=str(i), days=d, usd=u) for i, (d, u) in enumerate(points)]
    return [[choice.days, choice.usd] for choice in f(choices)]
