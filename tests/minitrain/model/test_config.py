from __future__ import annotations

import pytest
import torch

from minitrain.errors import InputError
from minitrain.measure.parameters import active_parameter_count, parameter_count
from minitrain.model.config import (
    PRESETS,
    ModelConfig,
    RopeScaling,
    preset,
)
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
SHAPE = {
    "vocab_size": 64,
    "hidden_size": 48,
    "layers": 2,
    "heads": 6,
    "kv_heads": 3,
    "ffn_size": 80,
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


def test_every_field_of_a_preset_can_be_changed():
    assert preset("1M", vocab_size=1024, tied=True).vocab_size == 1024
    assert preset("1M", hidden_size=256).head_size == 64  # it was derived, so it follows
    assert preset("1M", hidden_size=256, head_size=32).head_size == 32
    assert preset("mixtral-8x7b", ffn_size=64).expert_ffn_size == 64  # and so does this
    assert preset("1M-moe", ffn_size=64).expert_ffn_size == 224


@pytest.mark.parametrize(
    "change, words",
    [
        ({"kv_heads": 4}, "kv_heads may be 1, 2, 3, 6"),
        ({"hidden_size": 50}, "use 48 or 54"),
        ({"hidden_size": 5}, "use 6, or give head_size"),
        ({"head_size": 7}, "it must be even, 8 for one"),
        ({"layers": 0}, "layers is 0; it must be a whole number, 1 or more"),
        ({"heads": 6.0}, "heads is 6.0"),
        ({"vocab_size": "64"}, "vocab_size is '64'"),
        ({"kv_heads": 0}, "kv_heads is 0"),
        ({"window": 0}, "window is 0"),
        ({"max_length": True}, "max_length is True"),
        ({"rope_theta": 0.0}, "rope_theta is 0.0; it must be a number above 0"),
        ({"norm_eps": float("nan")}, "norm_eps is nan"),
        ({"rope_theta": "10k"}, "rope_theta is '10k'"),
        ({"experts": 1}, "cannot choose 2 of 1 experts: experts_per_token may be 1 to 1"),
        ({"experts": -4}, "experts is -4"),
        ({"experts": 4, "experts_per_token": 0}, "experts_per_token is 0"),
        ({"experts": 4, "expert_ffn_size": 0}, "expert_ffn_size is 0"),
        ({"experts": 4, "shared_experts": 1.5}, "shared_experts is 1.5"),
        ({"experts": 4, "capacity": 0.0}, "capacity is 0.0; it must be above 0"),
        ({"experts": 4, "z_loss": -1.0}, "z_loss is -1.0; it must be 0"),
    ],
)
def test_a_shape_that_cannot_be_is_refused_with_one_that_can(change, words):
    ModelConfig(**SHAPE)
    with pytest.raises(InputError, match=words):
        ModelConfig(**SHAPE | change)


def test_rope_scaling_is_checked():
    with pytest.raises(InputError, match="0 < low < high"):
        RopeScaling(low_frequency_factor=4.0, high_frequency_factor=1.0)
    with pytest.raises(InputError, match="use 1 or more"):
        RopeScaling(factor=0.5)


def test_unknown_names_are_refused_with_the_nearest():
    with pytest.raises(InputError, match="did you mean 'llama2-7b'"):
        preset("llama2-7")
    with pytest.raises(InputError, match="did you mean 'layers'"):
        preset("1M", layer=3)
