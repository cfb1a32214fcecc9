from __future__ import annotations

from dataclasses import replace

import pytest

from minitrain.measure import flops as measured
from minitrain.measure.parameters import matmul_parameters, parameter_count
from minitrain.model.config import PRESETS
from minitrain.parallel.pipeline.schedules import split_layers
from minitrain.planning.run import Model, Plan, make_run, stages_of
from minitrain.planning.step.step import hardware_flops, model_flops

from ..cases import LLAMA, MIXTURE, run_with

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


def test_the_52_percent_of_2021_is_an_hfu():
    """1T at 163 TFLOP/s: 52% of the peak with recomputation, 39.2% without."""
    run = make_run("A100-SXM-80GB", Model(128, 25600, 160, 160, 102400, 51200, gated=False),
                   Plan(recompute="full"), 2048, 1)  # fmt: skip
    share = model_flops(run) / hardware_flops(run)
    assert 163 / 312 * share == pytest.approx(0.392, abs=0.002)


def test_deepseek_v3():
    model = Model(61, 7168, 128, 128, 18432, 129280, True, 256, 8, 2048, 1, 3)
    assert parameter_count(model, 4096) == pytest.approx(671e9, rel=0.005)
    assert matmul_parameters(model) == pytest.approx(37e9, rel=0.03)


def test_a_mixture_with_one_expert_is_dense():
    one = replace(MIXTURE, experts=1, experts_per_token=1, shared_experts=0, dense_layers=0)
    dense = replace(one, experts=0, ffn=one.moe_ffn)
    routers = 16 * one.hidden
    assert matmul_parameters(one) == matmul_parameters(dense) + routers


def test_selective_recomputation_repeats_scores_unless_fused():
    old = run_with(Plan(recompute="selective", precision="fp16", software="2022"), LLAMA)
    scores = old.tokens * measured.attention_flops_per_token(LLAMA, 2048)
    assert hardware_flops(old) - model_flops(old) == scores
    fused = run_with(Plan(recompute="selective"), LLAMA)
    assert hardware_flops(fused) == model_flops(fused)


def test_layers_over_stages():
    assert split_layers(126, 128) == [0] + [1] * 126 + [0], "Llama 3: one less at either end"
    assert split_layers(12, 4) == [3] * 4
    assert sum(split_layers(61, 16)) == 61
    stages = stages_of(run_with(Plan(pp=4, vpp=2, schedule="interleaved"), MIXTURE))
    assert [s.first for s in stages] == [True] + 7 * [False]
    assert sum(s.dense for s in stages) == 1 and sum(s.layers for s in stages) == 16
