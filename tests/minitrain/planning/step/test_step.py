from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minitrain.measure import flops as measured
from minitrain.measure import parameters
from minitrain.measure.parameters import matmul_parameters, parameter_count
from minitrain.model.config import PRESETS
from minitrain.planning.hardware import chips
from minitrain.planning.run import Model, Plan, make_run, stages_of
from minitrain.planning.step import step as step_file
from minitrain.planning.step.network import IDEAL, Fabric, Wire, fabric_of
from minitrain.planning.step.step import estimate, hardware_flops, model_flops, timeline

from ..cases import LLAMA, MIXTURE, PLANS, changed, run_with

runs = pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS)


@runs
def test_the_parts_sum_to_the_step(plan):
    step = estimate(run_with(plan))
    assert sum(step.parts.values()) == pytest.approx(step.seconds, rel=1e-9)
    assert step.tokens_per_second == pytest.approx(64 * 2048 / step.seconds)
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


# ---- workload ----


PLAIN = ["llama2-7b", "llama2-70b", "llama3-8b", "llama3-405b"]


def model_of(name: str) -> Model:
    c = PRESETS[name]
    return Model(c.layers, c.hidden_size, c.heads, c.kv_heads, c.ffn_size, c.vocab_size)


@pytest.mark.parametrize("name", PLAIN)
def test_counts_agree_with_the_packages_own(name):
    config, model = PRESETS[name], model_of(name)
    """By the names of a planner's column or of a configuration, a Llama is the same."""
    assert parameter_count(model, 2048) == parameter_count(config)
    assert matmul_parameters(model) == matmul_parameters(config)
    run = make_run("A100-SXM-80GB", model, Plan(recompute="full"), 2048, 4)
    assert model_flops(run) == measured.model_flops(config, 4, 2048)
    assert hardware_flops(run) == measured.hardware_flops(config, 4, 2048, "full")


def test_narayanans_formula():
    """96 B s l h² (1 + s/6h + V/16lh) with full recomputation, 72 (… + V/12lh) without."""
    l, h, s, v, b = 48, 6144, 2048, 51200, 4  # noqa: E741
    run = make_run(
        "A100-SXM-80GB", Model(l, h, 64, 64, 4 * h, v, gated=False), Plan(recompute="full"), s, b
    )
    base = b * s * l * h * h
    assert model_flops(run) == pytest.approx(72 * base * (1 + s / (6 * h) + v / (12 * l * h)))
    assert hardware_flops(run) == pytest.approx(96 * base * (1 + s / (6 * h) + v / (16 * l * h)))


def test_selective_recomputation_repeats_scores_unless_fused():
    old = run_with(Plan(recompute="selective", precision="fp16", software="2022"), LLAMA)
    scores = old.tokens * measured.attention_flops_per_token(LLAMA, 2048)
    assert hardware_flops(old) - model_flops(old) == scores
    fused = run_with(Plan(recompute="selective"), LLAMA)
    assert hardware_flops(fused) == model_flops(fused)


def test_layers_over_stages():
    stages = stages_of(run_with(Plan(pp=4, vpp=2, schedule="interleaved"), MIXTURE))
    assert [s.first for s in stages] == [True] + 7 * [False]
    assert sum(s.dense for s in stages) == 1 and sum(s.layers for s in stages) == 16


# ---- network ----


H100 = fabric_of(chips()["H100-SXM-80GB"], 8)


def test_units_of_the_network():
    """1 GB to the next node at 73.5% of 50 GB/s: 27 ms; within the node at 362 GB/s: 2.8 ms."""
    assert H100.send(1e9, stride=8) == pytest.approx(0.0272, rel=0.01)
    assert H100.send(1e9, stride=1) == pytest.approx(0.00276, rel=0.01)


def test_a_hierarchy_beats_a_ring_of_single_cards():
    """64 chips in 8 nodes: each card carries an eighth."""
    flat = Fabric(H100.between, H100.between, 1, H100.tree_alpha)
    assert H100.seconds("all_reduce", 1e9, 64) < flat.seconds("all_reduce", 1e9, 64) / 4


def test_a_tree_beats_a_ring_where_latency_rules():
    wire = H100.between
    ring = wire.seconds("all_reduce", 1024, 1024)
    assert H100.across("all_reduce", 1024, 1024) < ring / 10
    assert H100.across("all_reduce", 1e10, 4) == wire.seconds("all_reduce", 1e10, 4)


def test_the_measured_32_gpu_all_reduce_of_b200():
    """381.8 GB/s of bus bandwidth at 16 GiB on 4 nodes of 8: not used in any fit."""
    fabric = fabric_of(chips()["B200-SXM"], 8)
    size = 16 * 2**30
    busbw = 2 * 31 / 32 * size / fabric.seconds("all_reduce", size, 32) / 1e9
    assert busbw == pytest.approx(381.8, rel=0.10)
