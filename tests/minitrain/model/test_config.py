from __future__ import annotations

import pytest

from minitrain.errors import InputError
from minitrain.model.config import (
    ModelConfig,
    RopeScaling,
    preset,
)

SHAPE = {
    "vocab_size": 64,
    "hidden_size": 48,
    "layers": 2,
    "heads": 6,
    "kv_heads": 3,
    "ffn_size": 80,
}


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
