"""Mixtures and curricula within their bounds; documents held out are trained on by nobody."""

from __future__ import annotations

import json
from collections import Counter
from itertools import islice

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from minitrain.data.loader import Loader
from minitrain.data.packing import IGNORED, pack
from minitrain.data.stream.held_out import hold_out
from minitrain.data.stream.mixture import JoinedRows, Mixture, tempered
from minitrain.data.stream.order import Curriculum, mean_length, permutation
from minitrain.data.stream.token_files import TokenRows, write_token_files
from minitrain.errors import InputError
from minitrain.model.config import ModelConfig
from minitrain.model.transformer import build
from minitrain.training.loss import token_weighted_loss


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


def test_wrong_arguments_are_told():
    for call, says in (
        (lambda: Mixture((1, 0), (1, 1), 3), "1 or more"),
        (lambda: Mixture((1,), (1,), 0), "1 or more"),
        (lambda: Mixture((1,), (1,), 2.5), "whole samples"),
        (lambda: Mixture((1,), (1,), 1, anneal_from=1.0), "less than 1"),
        (lambda: tempered([1], 0), "over 0"),
        (lambda: JoinedRows([rows(1, 1), pack([[1]], 3)]), "one row length"),
        (lambda: Curriculum(np.ones((2, 2))), "one for each row"),
        (lambda: Curriculum([]), "one for each row"),
        (lambda: Curriculum(np.array([1.0, np.nan])), "nan"),
        (lambda: Curriculum(np.ones(2), 0.0), "over 0"),
        (lambda: Curriculum(np.ones(2), 0.5, 2.0), "over 0"),
    ):
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


# Documents held out: every token is trained on or held out, and none is both


def asked(packed) -> Counter:
    """How often each token is a target; tokens are unique in these tests."""
    return Counter(packed.targets[packed.targets != IGNORED].tolist())


def unique(sizes):
    """Documents in which no token comes twice, the end is 0."""
    numbers = iter(range(1, 10_000))
    return [[next(numbers) for _ in range(size)] for size in sizes]


@given(
    st.lists(st.integers(0, 30), min_size=4, max_size=40),
    st.integers(1, 9),
    st.integers(5, 60),
    st.integers(0, 99),
)
@settings(max_examples=30, deadline=None)
def test_each_token_is_asked_for_once_on_one_side(tmp_path_factory, sizes, length, shard, seed):
    documents = unique(sizes)
    folder = tmp_path_factory.mktemp("tokens")
    write_token_files(folder, iter(documents), 10_000, 0, shard)
    held = hold_out(TokenRows(folder, length), seed, part=0.25, most_rows=10_000)
    sides = asked(held.training[:]), asked(held.rows)
    both = Counter({token for text in documents for token in text})
    ends = len(documents)
    assert sides[0] + sides[1] == both + Counter({0: ends})
    assert not (sides[0].keys() & sides[1].keys()) - {0}
    assert sum(sides[0].values()) == held.tokens
    left = (held.training[:].targets != IGNORED).any(dim=1)
    assert left.all(), "no row asks for nothing"
    whole = [text for text in documents if text and text[0] in sides[1]]
    assert all(set(text) <= sides[1].keys() for text in whole), "whole documents"


def test_at_most_so_many_rows_and_the_draw_is_the_seeds(tmp_path):
    write_token_files(tmp_path, unique([9] * 100), 10_000, 0, 300)
    rows = TokenRows(tmp_path, 8)
    held = hold_out(rows, 1, part=0.5, most_rows=3)
    assert len(held.rows) == 3 and 1000 - held.tokens == 30, "24 places hold 3 of 10 tokens"
    again, other = hold_out(rows, 1, 0.5, 3), hold_out(rows, 2, 0.5, 3)
    assert torch.equal(again.rows.tokens, held.rows.tokens)
    assert not torch.equal(other.rows.tokens, held.rows.tokens)


def test_few_documents_give_their_end(tmp_path):
    write_token_files(tmp_path, unique([50, 48]), 10_000, 0)
    held = hold_out(TokenRows(tmp_path, 10), 0, part=0.25)
    assert len(held.rows) == 2 and held.tokens == 80
    assert not (asked(held.rows).keys() & asked(held.training[:]).keys()) - {0}
    with pytest.raises(InputError, match="fills one row of 200 tokens, and one is held out"):
        hold_out(TokenRows(tmp_path, 200), 0)


def test_gradients_are_those_of_a_text_without_them(tmp_path):
    documents = [np.random.default_rng(i).integers(1, 40, 11).tolist() for i in range(12)]
    write_token_files(tmp_path, documents, 40, 0)
    held = hold_out(TokenRows(tmp_path, 24), 3, part=0.25)  # two documents a row
    out = set(held.training.documents.tolist())
    assert len(out) == 3
    others = pack([text for i, text in enumerate(documents) if i not in out], 24, 0)
    model = build(
        ModelConfig(vocab_size=40, layers=2, hidden_size=16, heads=2, kv_heads=2, ffn_size=32),
        seed=0,
    ).double()
    gradients = []
    for rows in (held.training, others):
        model.zero_grad()
        for batch in Loader(rows, 3, shuffle=False):
            logits = model(batch.tokens, batch.documents, batch.positions)
            token_weighted_loss(logits, batch.targets, 108).backward()
        gradients.append([p.grad.clone() for p in model.parameters()])
    for one, other in zip(*gradients):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-12)
