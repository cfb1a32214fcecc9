from __future__ import annotations

import time
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minitrain.measure import parameters
from minitrain.planning.run import Plan, make_run
from minitrain.planning.step import step as step_file
from minitrain.planning.step.network import IDEAL, Wire, fabric_of
from minitrain.planning.step.step import estimate, timeline

from ..cases import LLAMA, MIXTURE, PLANS, SMALL, changed, run_with

runs = pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS)


@runs
def test_the_parts_sum_to_the_step(plan):
    step = estimate(run_with(plan))
    assert sum(step.parts.values()) == pytest.approx(step.seconds, rel=1e-9)
    assert all(seconds > 0 for seconds in step.parts.values())


@runs
@pytest.mark.parametrize("wire", ["inside", "between"])
def test_more_bandwidth_is_never_slower(plan, wire):
    run = run_with(plan)
    fabric = fabric_of(run.chip, run.per_node)
    slow = getattr(fabric, wire)
    seconds = [
        estimate(run, replace(fabric, **{wire: Wire(slow.alpha, slow.bandwidth * f)})).seconds
        for f in (0.1, 0.5, 1, 2, 10)
    ]
    assert seconds == sorted(seconds, reverse=True)


@runs
def test_a_faster_chip_is_never_slower(plan):
    run = run_with(plan)
    for name in ("matmul", "attention", "memory"):
        value = getattr(run.chip.constants, name)
        better = replace(run.chip, constants=replace(run.chip.constants, **{name: 1.1 * value}))
        assert estimate(replace(run, chip=better)).seconds <= estimate(run).seconds


@runs
def test_an_ideal_network_leaves_computation_and_the_bubble(plan):
    step = estimate(run_with(plan), IDEAL)
    communication = {"tp", "cp", "ep", "dp", "send", "contention"}
    assert not communication & set(step.parts)
    if plan.pp == 1:
        assert "bubble" not in step.parts


def test_zero_latency_and_infinite_bandwidth_give_the_compute_bound():
    """An ideal chip on an ideal network: FLOPs over the peak, and nothing else."""
    run = run_with(Plan(tp=4, sp=True, dp=4, zero=1), LLAMA, "H100-SXM-80GB")
    constants = replace(run.chip.constants, matmul=1, attention=1e9, memory=1e9, kernel=0)
    run = replace(run, chip=replace(run.chip, constants=constants))
    flops = 6 * run.tokens * parameters.matmul_parameters(run.model)
    assert estimate(run, IDEAL).seconds == pytest.approx(flops / run.gpus / 989e12, rel=1e-3)


@pytest.mark.parametrize("axis", ["tp", "cp", "pp", "dp"])
def test_degenerate_meshes(axis):
    """One rank on an axis costs nothing of that axis; two cost less than twice the time of one."""
    run = run_with(Plan(), batch=64)
    alone, two = estimate(run), estimate(changed(run, **{axis: 2}))
    assert set(alone.parts) <= {"matmul", "attention", "elementwise", "optimizer"}
    assert two.seconds < alone.seconds


@pytest.mark.parametrize("name", ["pipeline", "interleaved", "zero-bubble", "2022"])
@pytest.mark.parametrize("batch,error", [(128, 1e-9), (126, 0.01)])
def test_a_long_pipeline_is_extrapolated(name, batch, error, monkeypatch):
    """Exactly where p divides m; else an interleaved schedule has groups of two sizes."""
    run = run_with(PLANS[name], batch=batch)
    short = estimate(run).seconds
    monkeypatch.setattr(step_file, "SETTLED", 1000)
    assert estimate(run).seconds == pytest.approx(short, rel=error)


@pytest.mark.alone
def test_10_000_ranks_simulate_in_under_a_second():
    plan = Plan(tp=8, sp=True, pp=16, vpp=2, dp=80, zero=1, schedule="interleaved")
    run = make_run("H100-SXM-80GB", LLAMA, plan, 8192, 80 * 64)
    assert run.gpus == 10_240
    start = time.process_time()
    estimate(run)
    assert time.process_time() - start < 1


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 4), st.integers(1, 12), st.sampled_from(["1f1b", "gpipe", "zero-bubble"]))
def test_the_timeline_is_the_step(p, m, schedule):
    run = run_with(Plan(pp=p, schedule=schedule), batch=m)
    clock, step = timeline(run), estimate(run)
    assert len(clock.ranks) == p
    assert clock.makespan <= step.seconds
    assert all(a.end <= b.start + 1e-12 for events in clock.ranks for a, b in pairwise(events))


def test_schedules_are_ordered_as_the_papers_say():
    seconds = {
        name: estimate(run_with(PLANS[name], batch=16)).seconds
        for name in ("pipeline", "interleaved", "zero-bubble")
    }
    assert seconds["interleaved"] < seconds["pipeline"]
    assert seconds["zero-bubble"] < seconds["pipeline"]


def test_recomputation_costs_at_most_a_third():
    run = run_with(Plan(tp=4, dp=2), LLAMA)
    none, full = (estimate(changed(run, recompute=r)) for r in ("none", "full"))
    assert 1.15 < full.seconds / none.seconds < 1.37
    assert full.hfu / full.mfu == pytest.approx(4 / 3, rel=0.05) and none.hfu == none.mfu


def test_experts_cost_what_is_active():
    dense = replace(MIXTURE, experts=0, shared_experts=0, dense_layers=0, ffn=3 * 1408)
    plan = Plan(dp=8, ep=8, micro_batch=4)
    mixture = estimate(run_with(plan, MIXTURE))
    same = estimate(run_with(replace(plan, ep=1), dense))
    assert 1.0 < mixture.seconds / same.seconds < 2.0
    assert parameters.parameter_count(MIXTURE, 2048) > 3 * parameters.parameter_count(dense, 2048)


def test_units():
    step = estimate(run_with(Plan(dp=4), SMALL))
    assert step.tokens_per_second == pytest.approx(64 * 2048 / step.seconds)
    assert step.tflops_per_gpu == pytest.approx(312 * step.mfu)
