"""Probes of lab e15: stacks, plans, bounds, schedules and decisions, brought back as plain data."""

from __future__ import annotations

from dataclasses import asdict, is_dataclass
from types import SimpleNamespace

import torch

from minitrain.lab.capstone import incidents
from minitrain.planning.step import step as clock

from .in_turn import in_turn


def keeping(coefficients):
    """What `saved` of the lab is, with drawn numbers."""
    number_each, fixed, full = coefficients

    def saved(rows, number, how):
        return rows * (number_each * number + fixed) // (full if how == "full" else 1)

    return saved


def held(f, cases):
    def call(stack, parameters, pieces, coefficients, rows):
        return f(SimpleNamespace(**stack), parameters, pieces, keeping(coefficients), rows)

    return in_turn(call, cases)


def planned(f, cases):
    """(the plan's fields or the name of its type, estimates asked for) of each case."""
    inner, count = clock.rank_passes, 0

    def counted(*arguments):
        nonlocal count
        count += 1
        return inner(*arguments)

    clock.rank_passes, found = counted, []
    for case in cases:
        count = 0
        plan = f(case)
        found.append((asdict(plan) if is_dataclass(plan) else type(plan).__name__, count))
    return found


def bounds(f, cases):
    return [f(case) for case in cases]


def ordered(f, cases):
    """The pairs of each rank's list."""
    return [[[(str(one[0]), int(one[1])) for one in rank] for rank in f(case)] for case in cases]


def decided(f, traces):
    """All decisions on each trace, in order: (K, 3)."""
    found = []
    for trace in traces:
        rows = []

        def noted(view, rows=rows):
            save_in, swap, spares = f(view)
            rows.append((float(save_in), float(bool(swap)), float(spares)))
            return rows[-1]

        incidents.goodput(trace, noted)
        found.append(torch.tensor(rows, dtype=torch.float64))
    return found
