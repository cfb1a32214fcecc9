from __future__ import annotations

import pytest
import torch

from minitrain.measure.parameters import active_parameter_count, parameter_count
from minitrain.model.config import PRESETS, preset
from minitrain.model.experts.moe import MoE
from minitrain.model.transformer import Transformer

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


@pytest.mark.parametrize("name", ["0.5M", "1M", "3M", "10M", "30M", "50M", "100M"])
def test_a_preset_named_after_its_size_has_it_within_two_percent(name):
    assert parameter_count(preset(name)) == pytest.approx(float(name[:-1]) * 1e6, rel=0.02)


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
