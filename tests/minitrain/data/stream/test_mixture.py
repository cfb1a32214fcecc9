"""Mixtures: weights within binomial bounds, each source read through before it is read again."""

from __future__ import annotations

import json
from itertools import islice

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from minitrain.data.loader import Loader
from minitrain.data.packing import pack
from minitrain.data.stream.mixture import JoinedRows, Mixture, tempered
from minitrain.data.stream.order import Curriculum, mean_length, permutation
from minitrain.errors import InputError


def rows(first: int, count: int):
    return pack([[first + i] for i in range(count)], length=2)


@given(st.lists(st.integers(1, 30), min_size=1, max_size=4), st.data())
@settings(max_examples=60, deadline=None)
def test_each_source_is_read_through_before_a_row_comes_again(sizes, data):
    weights = data.draw(st.lists(st.integers(0, 5), min_size=len(sizes), max_size=len(sizes)))
    weights[0] += 1
    mixture = Mixture(tuple(sizes), tuple(weights), data.draw(st.integers(1, 200)))
    order = mixture(data.draw(st.integers(0, 9)), 1)
    assert len(order) == len(mixture)
    starts = np.cumsum([0, *sizes])
    for source, size in enumerate(sizes):
        own = order[(starts[source] <= order) & (order < starts[source + 1])]
        assert len(own) == 0 or weights[source] > 0
        counts = np.bincount(own - starts[source], minlength=size)
        assert counts.max() - counts.min() <= 1
        for start in range(0, len(own), size):
            assert len(set(own[start : start + size])) == len(own[start : start + size])


def test_weights_are_realised_within_binomial_bounds():
    samples, weights = 50_000, np.array([0.5, 0.3, 0.15, 0.05])
    mixture = Mixture((100,) * 4, tuple(weights * 7), samples)
    shares = np.bincount(mixture.sources(3, 0), minlength=4) / samples
    bounds = 4 * np.sqrt(weights * (1 - weights) / samples)
    assert (abs(shares - weights) < bounds).all()
    assert mixture.passes() == pytest.approx(weights * 500)


def test_the_rows_of_a_source_are_drawn_apart_from_the_sources():
    """NumPy pads seeds with zeros: two draws of (seed, epoch) and (seed, epoch, 0, 0) are one."""
    assert permutation(99, 3, 0).tolist() == permutation(99, 3, 0, 0, 0).tolist()
    alone = Mixture((99,), (1,), 99)(3, 0)
    assert sorted(alone) == list(range(99)) and alone.tolist() != permutation(99, 3, 0).tolist()


def test_annealing_moves_the_weights_in_a_straight_line():
    mixture = Mixture((50, 50), (1, 0), 40_000, last_weights=(0, 1), anneal_from=0.5)
    drawn = mixture.sources(0, 0)
    assert not drawn[:20_000].any(), "before, the first alone"
    for low in (0.5, 0.7, 0.9):
        part = drawn[int(low * 40_000) : int((low + 0.1) * 40_000)]
        assert part.mean() == pytest.approx((low + 0.05 - 0.5) / 0.5, abs=0.03)
    assert sum(mixture.passes()) == pytest.approx(800)


def test_temperature():
    assert tempered([90, 10]) == pytest.approx((0.9, 0.1))
    assert tempered([90, 10], float("inf")) == (0.5, 0.5)
    assert tempered([16, 1], 4) == pytest.approx((2 / 3, 1 / 3))
    hot, cold = tempered([90, 10], 5), tempered([90, 10], 0.5)
    assert cold[0] > 0.9 > hot[0] > 0.5


def test_joined_rows_are_each_sources_own():
    parts = [rows(10, 5), rows(20, 3), rows(30, 4)]
    joined = JoinedRows(parts)
    assert joined.sizes == (5, 3, 4) and len(joined) == 12
    mixed = joined[torch.tensor([11, 0, 6, 11])]
    assert mixed.tokens[:, 1].tolist() == [33, 10, 21, 33]
    assert joined[:].tokens[:, 1].tolist() == [*range(10, 15), *range(20, 23), *range(30, 34)]
    assert len(joined[np.array([], int)]) == 0


def test_a_mixture_is_resumed_on_other_ranks_with_workers():
    joined = JoinedRows([rows(10, 5), rows(50, 30)])
    mixture = Mixture(joined.sizes, (1, 1), 40)
    expected = [int(joined[[row]].tokens[0, 1]) for row in mixture(2, 0)]
    one = Loader(joined, 8, seed=2, order=mixture)
    seen = [row[1] for batch in islice(one, 2) for row in batch.tokens.tolist()]
    two = [Loader(joined, 4, rank, 2, 2, order=mixture, workers=rank) for rank in range(2)]
    for loader in two:
        loader.load_state_dict(json.loads(json.dumps(one.state_dict())))
    for left, right in zip(*two):
        both = zip(left.tokens[:, 1].tolist(), right.tokens[:, 1].tolist())
        seen += [row for pair in both for row in pair]
    assert seen == expected
    other = Loader(joined, 8, seed=2, order=Mixture(joined.sizes, (1, 2), 40))
    with pytest.raises(InputError, match="same weights"):
        other.load_state_dict(one.state_dict())


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: Mixture((1, 0), (1, 1), 3), "1 or more"),
        (lambda: Mixture((1,), (1,), 0), "1 or more"),
        (lambda: Mixture((1,), (1,), 1, anneal_from=1.0), "less than 1"),
        (lambda: tempered([1], 0), "over 0"),
        (lambda: JoinedRows([rows(1, 1), pack([[1]], 3)]), "one row length"),
    ],
)
def test_wrong_arguments_are_told(call, says):
    with pytest.raises(InputError, match=says):
        call()


# --- a curriculum ---


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
def test_wrong_curricula_are_refused(arguments, says):
    with pytest.raises(InputError, match=says):
        Curriculum(*arguments)
