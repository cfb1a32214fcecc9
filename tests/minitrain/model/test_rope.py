from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding, apply_rotary_pos_emb

from minitrain.model.config import RopeScaling
from minitrain.model.rope import (
    document_positions,
    interleaved_to_half_split,
    rotate,
    rotate_interleaved,
    rotation,
)

from .peers import SMALL, peer_config

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
