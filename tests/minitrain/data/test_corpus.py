"""The corpus: exact odds, proved by a parser and by telling every story of a tiny world."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from math import inf, log

import numpy as np
import pytest

from minitrain.data.corpus import DOMAINS, make_corpus
from minitrain.data.stories.chain import ODDS, WORDS
from minitrain.data.stories.domain import WORLDS, Domain
from minitrain.data.stories.odds import TOTAL, Dice, Table, random_bytes, ranked, table
from minitrain.data.stories.storyteller import contradicted, tell
from minitrain.data.tokenizer import train_tokenizer
from minitrain.errors import InputError

from .story_reader import log_probability, score

FIRST_BYTES = {  # of the SHA-256 of the first 20,000 bytes with seed 7
    "village": "9276ad63e2a33bf6",
    "forest": "a2316629c3172cb0",
    "sea": "b12a3d2b2cb39bef",
    "space": "f7bf9b461a0f3f23",
    "chain": "82a357661049da71",
}


class AllChoices:
    """Instead of dice: makes the choices of a given path, and notes what else was possible."""

    def __init__(self, path: list[int]) -> None:
        self.path, self.at, self.p = path, 0, 1.0
        self.open_at: list[list[int]] = []

    def pick(self, odds: Table, banned=()) -> int:
        possible = [i for i, w in enumerate(odds.weights) if w and i not in banned]
        if self.at == len(self.path):
            self.path.append(possible[0])
        self.open_at.append(possible)
        index = self.path[self.at]
        self.at += 1
        self.p *= odds.weights[index] / sum(odds.weights[i] for i in possible)
        return index


def every_story(domain: Domain):
    """(text, p) of each derivation, depth first."""
    path: list[int] = []
    while True:
        choices = AllChoices(path)
        text = tell(domain, choices.pick)
        yield text, choices.p
        while path and path[-1] == choices.open_at[len(path) - 1][-1]:
            path.pop()
        if not path:
            return
        options = choices.open_at[len(path) - 1]
        path[-1] = options[options.index(path[-1]) + 1]


def tiny_world() -> Domain:
    """Few words, so that all stories can be told; two events at most."""
    v = next(world for world in WORLDS if world.name == "village")
    lists = ("traits", "sizes", "weathers", "times", "postures", "moves", "spots", "gives", "drops")
    one = {name: getattr(v, name)[:1] for name in (*lists, "songs", "moods", "feelings", "rests")}
    return replace(
        v,
        **one,
        women=v.women[:1],
        men=v.men[:1],
        jobs=v.jobs[:2],
        places=v.places[:2],
        objects=v.objects[:2],
        adjectives=v.adjectives[:1],
        creatures=v.creatures[:1],
        endings=(0, 100, 256),
    )


def test_every_story_of_a_tiny_world_is_told_once_and_the_odds_sum_to_one():
    world = tiny_world()
    stories = list(every_story(world))
    texts = [text for text, _ in stories]
    assert len(texts) > 3_000
    assert len(set(texts)) == len(texts), "two derivations of one text: its p would be their sum"
    assert sum(p for _, p in stories) == pytest.approx(1, abs=1e-9)
    for text, p in stories:
        assert abs(score(text, world) - log(p)) < 1e-9, text


@pytest.mark.parametrize("domain", DOMAINS)
def test_the_parser_recovers_the_generators_nats(domain):
    corpus = make_corpus(60_000, seed=11, domain=domain)
    assert all(text.isascii() for text in corpus.documents)
    for text, nats in zip(corpus.documents, corpus.nats):
        assert log_probability(text, domain) == pytest.approx(-nats, abs=1e-9), text


def test_the_mean_of_p_over_bytes_is_what_the_dice_do():
    """Drawn often, the choices of the dice have the frequencies of the weights, banned left out."""
    odds, dice = ranked(6, 3), Dice(random_bytes(5, "village"))
    drawn = np.bincount([dice.pick(odds, (1,)) for _ in range(20_000)], minlength=6) / 20_000
    weights = np.array(odds.weights) * (np.arange(6) != 1)
    assert drawn == pytest.approx(weights / weights.sum(), abs=0.012)
    assert dice.nats == pytest.approx(
        -sum(20_000 * f * log(w / weights.sum()) for f, w in zip(drawn, weights) if w)
    )


@pytest.mark.parametrize("domain", DOMAINS)
def test_the_same_seed_gives_the_same_bytes_everywhere(domain):
    text = "\n".join(make_corpus(20_000, seed=7, domain=domain).documents)
    assert hashlib.sha256(text.encode()).hexdigest()[:16] == FIRST_BYTES[domain]


def test_a_larger_corpus_begins_with_the_smaller_and_another_seed_shares_nothing():
    small, large = make_corpus(10_000), make_corpus(50_000)
    assert large.documents[: len(small.documents)] == small.documents
    assert (large.nats[: len(small.nats)] == small.nats).all()
    assert small.size_bytes >= 10_000 > small.size_bytes - len(small.documents[-1])
    assert not set(make_corpus(50_000, seed=1).documents) & set(large.documents)


def test_a_document_of_the_chain_costs_the_entropy_of_its_table_a_word():
    """In closed form: every word has the same odds over its own followers."""
    nats = make_corpus(1_000_000, domain="chain").nats / WORDS
    entropy = sum(weight / TOTAL * cost for weight, cost in zip(ODDS.weights, ODDS.nats))
    assert abs(nats.mean() - entropy) < 4 * nats.std() / np.sqrt(len(nats)) < 0.01


def test_the_floor_per_token_counts_each_end():
    corpus = make_corpus(40_000)
    tokenizer = train_tokenizer(corpus.documents)
    tokens = sum(len(tokenizer.encode(text)) + 1 for text in corpus.documents)
    assert corpus.entropy_per_token(tokenizer) == pytest.approx(corpus.nats.sum() / tokens)


@pytest.mark.parametrize("world", [world.name for world in WORLDS])
def test_no_twin_is_possible_and_one_word_differs(world: str):
    stories = make_corpus(40_000, seed=5, domain=world).documents
    twins = [(story, twin) for story in stories if (twin := contradicted(story))]
    assert len(twins) > 0.7 * len(stories)
    for story, twin in twins:
        assert log_probability(twin, world) == -inf < log_probability(story, world)
        pairs = zip(story.split(), twin.split(), strict=True)
        differ = [pair for pair in pairs if len(set(pair)) > 1]
        assert differ in ([("He", "She")], [("She", "He")])


@pytest.mark.parametrize("raw", [[1], [3, 1], [1000, 1, 1], list(range(1, 25)), [5, 0, 2]])
def test_weights_are_whole_sum_to_256_and_keep_what_is_possible(raw):
    weights = table(raw).weights
    assert sum(weights) == TOTAL
    assert [w > 0 for w in weights] == [r > 0 for r in raw]
    assert all(abs(w - r / sum(raw) * TOTAL) <= len(raw) for w, r in zip(weights, raw))


def test_a_wrong_argument_is_told():
    for arguments, says in (
        ({"domain": "vilage"}, "did you mean 'village'"),
        ({"size_bytes": 0}, "1 byte or more"),
        ({"seed": -1}, "seed >= 0"),
    ):
        with pytest.raises(InputError, match=says):
            make_corpus(**({"size_bytes": 1000} | arguments))
