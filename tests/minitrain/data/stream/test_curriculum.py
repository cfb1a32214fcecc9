"""A curriculum: every row once, none before its time, and easier rows earlier."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minitrain.data.loader import Loader
from minitrain.data.packing import pack
from minitrain.data.stream.order import Curriculum, mean_length
from minitrain.errors import InputError


@given(st.integers(1, 120), st.floats(0.01, 1), st.floats(0.05, 1), st.integers(0, 5))
@settings(max_examples=60, deadline=None)
def test_every_row_once_and_none_before_its_time(count, start, ramp, seed):
    difficulty = np.random.default_rng(seed).random(count)
    curriculum = Curriculum(difficulty, start, ramp)
    order = curriculum(seed, 0)
    assert sorted(order) == list(range(count))
    rank = np.argsort(np.argsort(difficulty))
    for position, row in enumerate(order):
        may_come = max(position + 1, np.ceil(curriculum.competence(position) * count))
        assert rank[row] < may_come
    assert curriculum(seed, 0).tolist() == order.tolist()


def test_the_easy_come_first_and_later_epochs_are_shuffled():
    difficulty = np.random.default_rng(0).random(2000)
    curriculum = Curriculum(difficulty, start=0.05, ramp=0.8)
    order, later = curriculum(0, 0), curriculum(0, 1)
    quarters = [difficulty[part].mean() for part in np.split(order, 4)]
    assert quarters[0] < 0.25 < quarters[2] < quarters[3]
    assert abs(difficulty[later[:500]].mean() - 0.5) < 0.05
    everything_at_once = Curriculum(difficulty, start=1.0)(0, 0)
    assert abs(difficulty[everything_at_once[:500]].mean() - 0.5) < 0.05


def test_competence_by_hand():
    curriculum = Curriculum(np.arange(100.0), start=0.1, ramp=0.5)
    assert curriculum.competence(0) == pytest.approx(0.1)
    assert curriculum.competence(25) == pytest.approx(np.sqrt(0.5 * 0.99 + 0.01))
    assert curriculum.competence(50) == curriculum.competence(99) == 1.0


def test_difficulty_by_the_mean_length_of_the_documents():
    packed = pack([[5] * 7, [5], [5], [6]], length=8)
    assert sorted(mean_length(packed)) == [2.0, 8.0]


def test_the_loader_takes_it():
    packed = pack([[i] for i in range(1, 13)], 2)
    hard = packed.tokens[:, 1].double().numpy()
    batches = Loader(packed, 3, order=Curriculum(hard, start=0.25, ramp=1.0))
    first = next(iter(batches)).tokens[:, 1]
    assert first.max() <= 6


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ((np.ones((2, 2)),), "one for each row"),
        ((np.ones(0),), "one for each row"),
        ((np.array([1.0, np.nan]),), "nan"),
        ((np.ones(2), 0.0), "over 0"),
        ((np.ones(2), 0.5, 2.0), "over 0"),
    ],
)
def test_wrong_arguments_are_told(arguments, says):
    with pytest.raises(InputError, match=says):
        Curriculum(*arguments)
