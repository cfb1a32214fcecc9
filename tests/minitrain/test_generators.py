from __future__ import annotations

import random

import numpy as np
import pytest
import torch

from minitrain.generators import (
    generator_states,
    restore_generators,
    restore_torch,
    seed_generators,
    torch_states,
)


def draw() -> list[float]:
    """From each of the three, normals too: of these a generator keeps the second one of a pair."""
    pairs = [random.gauss(0, 1), float(np.random.randn()), float(torch.randn(()))]
    return [*pairs, random.random(), float(np.random.rand()), float(torch.rand(()))]


def test_a_seed_decides_what_all_three_draw():
    seed_generators(7)
    first = draw()
    assert draw() != first
    seed_generators(7)
    assert draw() == first
    seed_generators(8)
    assert all(a != b for a, b in zip(draw(), first))


@pytest.mark.parametrize("seed", [0, 2**32, 2**63])
def test_a_seed_may_be_larger_than_numpy_takes(seed):
    seed_generators(seed)
    first = draw()
    seed_generators(seed)
    assert draw() == first


def test_all_go_on_from_where_they_stood():
    draw()
    states = generator_states()
    expected = draw(), draw()
    restore_generators(states)
    assert (draw(), draw()) == expected


def test_torchs_alone_leave_the_others_where_they_are():
    states = torch_states([torch.device("cpu")])
    first = draw()
    restore_torch(states)
    second = draw()
    assert [a == b for a, b in zip(first, second)] == [False, False, True] * 2
