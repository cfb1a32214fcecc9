from __future__ import annotations

import pytest

from minitrain.measure import parameters
from minitrain.parallel.pipeline.schedules import make_schedule
from minitrain.parallel.pipeline.timeline import peak_live
from minitrain.planning.run import Model, Plan, make_run
from minitrain.planning.step.memory import (
    layer_activations,
    live_passes,
    peak_memory,
    rank_memory,
)

from ..cases import LLAMA, MIXTURE, changed, run_with

GPT = Model(48, 6144, 64, 64, 4 * 6144, 51200, gated=False)


def gpt(t: int = 1, **plan: object):
    plan = Plan(tp=t, micro_batch=4, precision="fp16", software="2022", **plan)
    return make_run("A100-SXM-80GB", GPT, plan, 2048, 4)


@pytest.mark.parametrize("t", [1, 2, 8])
def test_korthikantis_table_2(t):
    """s b h of 2048 · 4 · 6144 and a s / h of 64 · 2048 / 6144."""
    sbh, scores = 2048 * 4 * 6144, 5 * 64 * 2048 / 6144
    assert layer_activations(gpt(t)) == pytest.approx(sbh * (10 + (24 + scores) / t))
    assert layer_activations(gpt(t, sp=True)) == pytest.approx(sbh / t * (34 + scores))
    assert layer_activations(gpt(t, recompute="selective")) == pytest.approx(sbh * (10 + 24 / t))
    assert layer_activations(gpt(t, sp=True, recompute="selective")) == pytest.approx(34 * sbh / t)
    assert layer_activations(gpt(t, recompute="full")) == 2 * sbh


@pytest.mark.parametrize(
    "name,v", [("1f1b", 1), ("gpipe", 1), ("zero-bubble", 1), ("interleaved", 3)]
)
@pytest.mark.parametrize("p,m", [(1, 4), (2, 2), (4, 3), (4, 8), (4, 9), (8, 27)])
def test_live_passes_are_those_of_the_schedule(name, v, p, m):
    counted = peak_live(make_schedule(name, p, m, v))
    plan = Plan(pp=p, vpp=v, schedule=name)
    assert [live_passes(plan, rank, m) for rank in range(p)] == counted


def test_all_ranks_together_hold_every_parameter():
    for plan in (Plan(), Plan(tp=2, pp=4), Plan(pp=4, vpp=2, schedule="interleaved"), Plan(tp=4)):
        run = run_with(plan, LLAMA)
        held = sum(
            rank_memory(run, rank).parameters / 2 + rank_memory(run, rank).embedding / 18
            for rank in range(plan.pp)
        )
        whole = parameters.parameter_count(LLAMA, run.seq)
        assert held * plan.tp == pytest.approx(whole, rel=1e-4)  # the last norm is left out


def test_more_sharding_never_needs_more():
    run = run_with(Plan(tp=2, dp=8), LLAMA)
    totals = [peak_memory(changed(run, zero=stage)).states for stage in range(4)]
    assert totals == sorted(totals, reverse=True)
    assert peak_memory(changed(run, sp=True)).activations < peak_memory(run).activations
    full, none = (peak_memory(changed(run, recompute=r)).activations for r in ("full", "none"))
    assert full < none / 5


def test_context_parallelism_divides_activations():
    run = run_with(Plan(dp=4), LLAMA)
    two = changed(run, cp=2)
    assert peak_memory(two).activations == pytest.approx(peak_memory(run).activations / 2)


def test_expert_parallelism_spreads_experts_alone():
    run = run_with(Plan(dp=8), MIXTURE)
    one, eight = rank_memory(run), rank_memory(changed(run, ep=8))
    experts = 15 * parameters.expert_weights(MIXTURE)
    assert (one.parameters - eight.parameters) / 2 == pytest.approx(experts * 7 / 8)
