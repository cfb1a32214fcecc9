"""Shapes that cannot be are refused; RoPE is transformers' own."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding, apply_rotary_pos_emb

from minitrain.errors import InputError
from minitrain.model.config import ModelConfig, RopeScaling, preset
from minitrain.model.rope import (
    document_positions,
    interleaved_to_half_split,
    rotate,
    rotate_interleaved,
    rotation,
)

from .peers import SMALL, peer_config

SHAPE = ModelConfig(64, 48, layers=2, heads=6, kv_heads=3, ffn_size=80)


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
        ({"hidden_size": 50, "head_size": None}, "use 48 or 54"),
        ({"hidden_size": 5, "head_size": None}, "use 6, or give head_size"),
        ({"head_size": 7}, "it must be even, 8 for one"),
        ({"layers": 0}, "layers is 0; it must be a whole number, 1 or more"),
        ({"heads": 6.0}, "heads is 6.0"),
        ({"vocab_size": "64"}, "vocab_size is '64'"),
        ({"window": 0}, "window is 0"),
        ({"max_length": True}, "max_length is True"),
        ({"rope_theta": 0.0}, "rope_theta is 0.0; it must be a number above 0"),
        ({"norm_eps": float("nan")}, "norm_eps is nan"),
        ({"experts": 1}, "cannot choose 2 of 1 experts: experts_per_token may be 1 to 1"),
        ({"experts": 4, "experts_per_token": 0}, "experts_per_token is 0"),
        ({"experts": 4, "shared_experts": 1.5}, "shared_experts is 1.5"),
        ({"experts": 4, "capacity": 0.0}, "capacity is 0.0; it must be above 0"),
        ({"experts": 4, "z_loss": -1.0}, "z_loss is -1.0; it must be 0"),
    ],
)
def test_a_shape_that_cannot_be_is_refused_with_one_that_can(change, words):
    with pytest.raises(InputError, match=words):
        replace(SHAPE, **change)


def test_rope_scaling_and_names_are_checked():
    with pytest.raises(InputError, match="0 < low < high"):
        RopeScaling(low_frequency_factor=4.0, high_frequency_factor=1.0)
    with pytest.raises(InputError, match="use 1 or more"):
        RopeScaling(factor=0.5)
    with pytest.raises(InputError, match="did you mean 'llama2-7b'"):
        preset("llama2-7")
    with pytest.raises(InputError, match="did you mean 'layers'"):
        preset("1M", layer=3)


# RoPE


SCALED = replace(SMALL, rope_scaling=RopeScaling(original_length=64), head_size=32)


@pytest.mark.parametrize("config", [SMALL, SCALED], ids=["plain", "llama3"])
def test_it_is_the_rotation_of_transformers(config):
    q, k = (torch.randn(2, 9, heads, config.head_size) for heads in (4, 2))
    positions = torch.randint(0, 1000, (2, 9))
    cos, sin = LlamaRotaryEmbedding(peer_config(config, "llama"))(q, positions)
    want = apply_rotary_pos_emb(q, k, cos, sin, unsqueeze_dim=2)
    turns = rotation(config, positions, q.dtype)
    for ours, theirs in zip((rotate(q, turns), rotate(k, turns)), want):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=0)


def test_the_two_conventions_are_one_model_once_the_rows_are_reordered():
    heads, size = 4, SMALL.head_size
    weight, x = torch.randn(heads * size, 32).double(), torch.randn(2, 5, 32).double()
    turns = rotation(SMALL, torch.arange(5), torch.float64)

    def project(matrix):
        return (x @ matrix.T).unflatten(-1, (heads, size))  # (B, T, H, C)

    want = rotate_interleaved(project(weight), turns)
    got = rotate(project(interleaved_to_half_split(weight, heads)), turns)
    scores = [torch.einsum("bihc,bjhc->bhij", z, z) for z in (want, got)]
    torch.testing.assert_close(scores[0], scores[1])
    # Without the reordering it is another model.
    wrong = rotate(project(weight), turns)
    assert not torch.allclose(torch.einsum("bihc,bjhc->bhij", wrong, wrong), scores[0], atol=1e-2)


def test_angles_stay_exact_in_half_precision():
    positions = torch.tensor([4001, 4002])
    turns = rotation(SMALL, positions, torch.bfloat16)
    assert turns.cos.dtype == torch.bfloat16
    assert not torch.equal(turns.cos[0], turns.cos[1])
    exact = rotation(SMALL, positions, torch.float64)
    torch.testing.assert_close(turns.cos.double(), exact.cos, rtol=0, atol=2**-8)


def test_positions_begin_anew_in_each_document():
    documents = torch.tensor([[0, 0, 0, 1, 1, 2], [5, 3, 3, 3, 3, 3], [0, 0, 0, 0, 0, 0]])
    want = [[0, 1, 2, 0, 1, 0], [0, 0, 1, 2, 3, 4], [0, 1, 2, 3, 4, 5]]
    assert document_positions(documents).tolist() == want
