from __future__ import annotations

from collections import defaultdict
from dataclasses import replace

import pytest

from minitrain.planning.closed_forms import best_plans, legal_runs, step_parts, weights
from minitrain.planning.hardware import find_chip
from minitrain.planning.run import Plan
from minitrain.planning.search import USABLE, search
from minitrain.planning.step.memory import peak_memory
from minitrain.planning.step.network import IDEAL, fabric_of
from minitrain.planning.step.step import estimate
from minitrain.planning.validate import published_steps

from .cases import LLAMA, PLANS, SMALL, changed, run_with

MEANS = {
    "Korthikanti table 5": 0.06,
    "SC21 table 1": 0.07,
    "Llama 3 405B table 4": 0.03,
    "MPT benchmarks": 0.09,
}


def parts_of(run):
    return step_parts(run, fabric_of(run.chip, run.per_node))


def mean_errors(without: str = "") -> dict[str, float]:
    """Of each published table in 16 bits, perhaps with one part left out."""
    errors = defaultdict(list)
    for row in published_steps():
        if row.run.plan.precision != "fp8":
            seconds = sum(value for part, value in parts_of(row.run).items() if part != without)
            errors[row.table].append(abs(seconds / row.seconds - 1))
    return {table: sum(found) / len(found) for table, found in errors.items()}


def test_published_steps_within_what_the_docstring_says():
    errors = mean_errors()
    assert all(errors[table] <= most for table, most in MEANS.items()), errors


@pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS)
def test_within_a_third_of_the_clock(plan):
    run = run_with(plan, LLAMA)
    assert sum(parts_of(run).values()) == pytest.approx(estimate(run).seconds, rel=0.34)


def test_what_is_not_there_costs_nothing():
    parts = step_parts(run_with(Plan()), IDEAL)
    assert parts["tensor"] == parts["bubble"] == parts["data"] == 0 < parts["matmul"]


def test_a_slow_network_shows_zero_3s_traffic():
    run = run_with(Plan(dp=16, zero=3), LLAMA)
    fabric = fabric_of(run.chip, 8)
    slow = replace(fabric, between=replace(fabric.between, bandwidth=1e9))
    assert step_parts(run, IDEAL)["data"] == 0 < step_parts(run, slow)["data"]
    assert parts_of(changed(run, zero=1))["data"] > 0


def test_plans_are_legal_fit_and_come_in_order():
    chip = find_chip("H100-SXM-80GB")
    runs = list(legal_runs(LLAMA, chip, 64, 8192, 512))
    assert len(set(runs)) == len(runs) and {run.gpus for run in runs} == {64}
    assert not any(run.plan.zero == 3 and run.plan.pp > 1 for run in runs)

    def memory_of(run):
        return peak_memory(run).total

    def seconds_of(run):
        return sum(parts_of(run).values())

    found = best_plans(LLAMA, chip, 64, 8192, 512, memory_of, seconds_of)
    seconds = [seconds_of(run) for run in found]
    assert len(found) == 5 and seconds == sorted(seconds)
    assert all(memory_of(run) <= USABLE * chip.memory for run in found)
    clock = search(LLAMA, chip, 64, 8192, 512, best=1).steps[0].seconds
    assert estimate(found[0]).seconds < 1.25 * clock, "its choice is nearly as good as the clock's"


@pytest.mark.parametrize("gated", [True, False])
def test_the_two_counts_of_a_dense_model(gated):
    """They differ by an embedding of its own, tied or not, and the norms' scales, no bias."""
    model = replace(SMALL, gated=gated)
    held, active = weights(model)
    norms = (2 * model.layers + 1) * model.hidden
    assert active > 0 and held - active == model.hidden * model.vocab + norms
