"""Models that learn from models: the drift is measured against the language's own entropy."""

from __future__ import annotations

from itertools import pairwise
from math import exp

import numpy as np
import pytest

from minitrain.data.corpus import DOMAINS, make_corpus
from minitrain.data.preparation.synthetic import WordChain, generations
from minitrain.data.stories.chain import FOLLOWERS, ODDS, VOCABULARY
from minitrain.errors import InputError

FLOOR = sum(w / 256 * n for w, n in zip(ODDS.weights, ODDS.nats))  # nats a word


@pytest.fixture(scope="module")
def corpus() -> list[str]:
    return make_corpus(60_000, seed=0, domain="chain").documents


@pytest.fixture(scope="module")
def held_out() -> list[str]:
    return make_corpus(20_000, seed=1, domain="chain").documents


def test_a_model_of_real_text_comes_near_the_floor(held_out):
    model = WordChain(make_corpus(400_000, seed=0, domain="chain").documents)
    assert FLOOR < model.loss(held_out) < FLOOR + 0.05
    assert model.entropy == pytest.approx(FLOOR, abs=0.04)
    assert model.steps <= VOCABULARY * FOLLOWERS + 1 + FOLLOWERS


def test_what_it_writes_is_in_the_language_and_the_same_for_a_seed(corpus):
    model = WordChain(corpus)
    texts = model.write(20, seed=5)
    assert texts == model.write(20, seed=5) != model.write(20, seed=6)
    nats = [-DOMAINS["chain"].score(text) for text in texts]
    assert np.isfinite(nats).all(), "it steps only where it has seen a step"
    assert np.mean(nats) / model.length == pytest.approx(FLOOR, abs=0.15)


def test_models_that_eat_their_own_output_forget_the_tails(corpus, held_out):
    alone = [g.model for g in generations(WordChain, corpus, 6)]
    beside = [g.model for g in generations(WordChain, corpus, 6, keep_real=True)]
    steps, entropy = [m.steps for m in alone], [m.entropy for m in alone]
    assert all(a > b for a, b in pairwise(steps)), "what is lost never comes back"
    assert all(a > b for a, b in pairwise(entropy))
    assert entropy[-1] < FLOOR - 0.1, "the model's language is poorer than the real one"
    loss = [model.loss(held_out) for model in alone]
    assert loss[-1] > loss[0] + 0.5 and loss[0] > FLOOR
    assert all(model.steps == alone[0].steps for model in beside), "with the real text none is lost"
    assert beside[-1].loss(held_out) - loss[0] < 0.2 * (loss[-1] - loss[0])


def test_how_much_each_generation_learns_from(corpus):
    assert [g.learnt_from for g in generations(WordChain, corpus[:9], 3)] == [9, 9, 9]
    assert [g.learnt_from for g in generations(WordChain, corpus[:9], 3, keep_real=True)] == [
        9,
        18,
        27,
    ]


def test_by_hand():
    model = WordChain(["a b", "a a"])
    assert model.steps == 3 and model.length == 2, "a begins; then a or b"
    assert model.loss(["a b"]) == pytest.approx(np.log(2) / 2)
    assert model.loss(["b"], unknown=exp(-3)) == pytest.approx(3)
    assert model.entropy == pytest.approx(2 * np.log(2) / 4)
    assert WordChain(["x y"]).write(1, 0) == ["x y"]
    assert WordChain(["x", "x y z"]).write(2, 0)[0].startswith("x")


def test_nothing_to_learn_from_is_told():
    with pytest.raises(InputError, match="no word"):
        WordChain(["", " "])
    with pytest.raises(InputError, match="1 or more of each"):
        generations(WordChain, [], 3)
