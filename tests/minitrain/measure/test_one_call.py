"""The cost of one call: bytes kept for backward, bytes allocated, FLOPs of each operation."""

from __future__ import annotations

import pytest
import torch

from minitrain.measure.kept import kept_for_backward
from minitrain.measure.memory import peak_allocated_bytes
from minitrain.measure.operations import operations_of
from minitrain.measure.parameters import active_parameter_count, parameter_count
from minitrain.model.config import PRESETS, preset
from minitrain.model.experts.moe import MoE
from minitrain.model.transformer import Transformer


def test_a_matmul_keeps_its_input_and_its_weight():
    x, w = torch.ones(3, 5, requires_grad=True), torch.ones(5, 7, requires_grad=True)
    y, nbytes = kept_for_backward(torch.matmul, x, w)
    assert nbytes == 4 * (3 * 5 + 5 * 7) and y.shape == (3, 7)
    y.sum().backward()
    assert torch.equal(x.grad, torch.full((3, 5), 7.0))


def test_what_is_there_anyhow_does_not_count_and_views_count_once():
    x, w = torch.ones(3, 5, requires_grad=True), torch.ones(5, 5, requires_grad=True)
    _, nbytes = kept_for_backward(lambda: (x @ w) @ w.T, but=[w, "no tensor"])
    assert nbytes == 4 * 2 * 3 * 5  # x, and x·w


def test_the_peak_is_of_what_lives_at_the_same_time():
    def two_at_a_time():
        a = torch.ones(1000)  # 4,000 bytes
        b = a + 1
        del a
        c = b * 2
        return (b, c)

    peak = peak_allocated_bytes(lambda: two_at_a_time() and None)
    assert 8000 <= peak < 9000
    assert 16000 <= peak_allocated_bytes(lambda: [torch.ones(1000) for _ in range(4)]) < 17000


def test_each_kind_is_counted_and_the_dear_ones_come_first():
    x, weight = torch.randn(6, 4), torch.randn(4, 5)
    rows = operations_of(lambda: ((x @ weight).T.sigmoid(), x @ weight, x.view(24) * 2))
    assert rows[0] == {"operation": "mm", "calls": 2, "bytes": 2 * 4 * 30, "FLOPs": 2 * 2 * 4 * 30}
    assert {row["operation"]: (row["bytes"], row["FLOPs"]) for row in rows[1:]} == {
        "sigmoid": (4 * 30, 0),
        "mul": (4 * 24, 0),
    }


# --- messages of errors ---


PUBLISHED = {  # of the checkpoints on the hub
    "stories15M": 15_191_712,
    "smollm2-135m": 134_515_008,
    "llama2-7b": 6_738_415_616,
    "llama2-13b": 13_015_864_320,
    "llama2-70b": 68_976_648_192,
    "llama3-8b": 8_030_261_248,
    "llama3-70b": 70_553_706_496,
    "llama3-405b": 405_853_388_800,
    "mistral-7b": 7_241_732_096,
    "mixtral-8x7b": 46_702_792_704,
    "qwen2-0.5b": 494_032_768,
    "qwen2-7b": 7_615_616_512,
}


@pytest.mark.parametrize("name", PRESETS)
def test_closed_form_equals_the_model_on_the_meta_device(name):
    with torch.device("meta"):
        model = Transformer(preset(name))
    assert parameter_count(preset(name)) == sum(p.numel() for p in model.parameters())


@pytest.mark.parametrize("name, count", PUBLISHED.items())
def test_closed_form_equals_what_was_published(name, count):
    assert parameter_count(preset(name)) == count


@pytest.mark.parametrize("name", ["1M-moe", "1M-moe-shared"])
def test_active_parameters_are_those_of_the_dense_model_and_the_router(name):
    config, dense = preset(name), preset("1M")
    routers = config.layers * config.experts * config.hidden_size
    assert active_parameter_count(config) == parameter_count(dense) + routers
    assert active_parameter_count(dense) == parameter_count(dense)
    assert parameter_count(config) > 3 * parameter_count(dense)


def test_active_parameters_leave_out_the_experts_that_a_token_does_not_choose():
    config = preset("1M-moe-shared", layers=1)
    with torch.device("meta"):
        moe = MoE(config)
    idle = (config.experts - config.experts_per_token) / config.experts
    idle *= sum(p.numel() for p in moe.experts.parameters())
    assert parameter_count(config) - active_parameter_count(config) == idle
    assert active_parameter_count(preset("mixtral-8x7b")) == 12_879_925_248  # "13B" in its paper


def test_the_first_of_several_results_counts():
    x = torch.randn(3, 8)
    (row,) = operations_of(lambda: x.topk(2))
    assert row == {"operation": "topk", "calls": 1, "bytes": 4 * 3 * 2, "FLOPs": 0}
