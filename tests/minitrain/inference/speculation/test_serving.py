"""An engine whose requests speculate gives every answer that it gives without, whoever drafts."""

from __future__ import annotations

from collections import Counter
from contextlib import nullcontext
from dataclasses import replace
from functools import lru_cache

import pytest
import torch

from minitrain.errors import InputError
from minitrain.inference.cache.dense import DenseCache, read_on
from minitrain.inference.cache.paged import PagedCache
from minitrain.inference.engine.engine import Engine
from minitrain.inference.parameters import SamplingParameters
from minitrain.inference.speculation import verification
from minitrain.inference.speculation.draft_model import DraftModel, first_layers, quantized_draft
from minitrain.inference.speculation.eagle import Eagle, EagleLayer
from minitrain.inference.speculation.length import AdaptiveLength, Costs
from minitrain.inference.speculation.medusa import Medusa, MedusaHeads
from minitrain.inference.speculation.ngram import NGram
from minitrain.inference.speculation.proposer import Draft
from minitrain.inference.speculation.serving import EngineDrafts, SpeculativeEngine, speculate
from minitrain.model.transformer import build

from ...model.peers import SMALL
from ..engine.traffic import prompts
from .test_verification import p_value

TARGET = build(SMALL, dtype=torch.float64, seed=1)
ANSWER = SamplingParameters(max_new_tokens=10)
COUNT = 5
ROOMY = {"num_blocks": 80, "block_size": 4}
MODES = {
    "batched": ROOMY,
    "in chunks": {**ROOMY, "budget": 9, "max_running": 5},
    "preempted": {"num_blocks": 7, "block_size": 4, "budget": 9, "max_running": 5},
}
DRAWN = {"temperature": 1.0}
PENALISED = {"repetition_penalty": 1.5, "frequency_penalty": 0.7}


def distorted(seed: int, by: float):
    """A model that is right now and then, as a draft is."""
    draft, noise = (build(SMALL, dtype=torch.float64, seed=s) for s in (1, seed))
    with torch.no_grad():
        for own, other in zip(draft.parameters(), noise.parameters()):
            own.lerp_(other, by)
    return draft


class Proposing:
    def propose(self, requests):
        return [self.tree(asked) for asked in requests]

    def forget(self, key):
        pass


class Rivals(Proposing):
    """A tree around what the target says: its greedy token and a rival at each depth; and now and
    then a lie, by the length of the text."""

    def tree(self, asked):
        tokens, parents, text, under = [], [], list(asked.tokens), -1
        while len(tokens) + 2 <= asked.most:
            best = int(TARGET(torch.tensor([text]))[0, -1].argmax())
            best = (best + 1) % 61 if len(text) % 5 == 0 else best
            tokens += [(best + 7) % 61, best]
            parents += [under, under]
            under = len(tokens) - 1
            text.append(best)
        return Draft(tuple(tokens), tuple(parents))


BRANCHES = [(0,), (1,), (2,), (0, 0), (0, 1), (0, 0, 0)]
PROPOSERS = {
    "a draft model": lambda: DraftModel(distorted(2, 0.2), rows=4),
    "with too few rows": lambda: DraftModel(distorted(2, 0.2), rows=3),
    "the target itself": lambda: DraftModel(TARGET, rows=5),
    "another model": lambda: DraftModel(build(SMALL, dtype=torch.float64, seed=5), rows=4),
    "int4": lambda: DraftModel(quantized_draft(TARGET, "int4-g32"), rows=4),
    "two layers": lambda: DraftModel(first_layers(TARGET, 2), rows=4),
    "its own text": lambda: NGram(),
    "medusa": lambda: Medusa(MedusaHeads(TARGET, torch.arange(61)), BRANCHES),
    "eagle": lambda: Eagle(EagleLayer(TARGET, torch.arange(0, 61, 2)), rows=4),
    "a tree with rivals": lambda: Rivals(),
}


@lru_cache
def alone(**parameters: float) -> list[list[int]]:
    answers = Engine(TARGET, **ROOMY).generate(prompts(COUNT), replace(ANSWER, **parameters))
    return [answer.tokens for answer in answers]


def served(engine: Engine, **parameters: float) -> list[list[int]]:
    answers = engine.generate(prompts(COUNT), replace(ANSWER, **parameters))
    assert engine.scheduler.blocks.used == 0
    return [answer.tokens for answer in answers]


def speculating(proposer, length=4, drawn=False, **options) -> SpeculativeEngine:
    drafts = EngineDrafts(proposer, length, drawn)
    return SpeculativeEngine(TARGET, **(options or ROOMY), proposer=drafts)


@pytest.mark.parametrize("name", PROPOSERS)
def test_every_request_of_a_batch_gets_what_it_gets_without_drafts(name):
    for mode, options in MODES.items():
        engine = speculating(PROPOSERS[name](), 6, **options)
        assert served(engine) == alone(), mode
        if mode == "preempted":
            assert served(engine, **DRAWN) == alone(**DRAWN), "and where prefixes are found"
        assert not engine.proposer.unshown
        assert (sum(step.preemptions for step in engine.steps) > 0) == (mode == "preempted")
        assert all(step.kept <= step.drafted for step in engine.steps)


@pytest.mark.parametrize("name", ["a draft model", "a tree with rivals"])
def test_penalties_count_what_each_drafts_own_path_has_generated(name):
    for drawn in (False, True):
        assert served(speculating(PROPOSERS[name](), drawn=drawn), **PENALISED) == alone(
            **PENALISED
        )


@pytest.mark.parametrize("name", ["the target itself", "a tree with rivals"])
def test_drafts_that_are_right_save_passes(name):
    engine = speculating(PROPOSERS[name]())
    assert served(engine) == alone()
    passes, kept = (sum(getattr(s, of) for s in engine.steps) for of in ("requests", "kept"))
    assert passes == COUNT * ANSWER.max_new_tokens - kept
    assert passes < 0.7 * COUNT * ANSWER.max_new_tokens
    assert kept < sum(step.drafted for step in engine.steps) or name == "the target itself"
    answer = speculate(TARGET, PROPOSERS["the target itself"](), [[3, 1]], ANSWER, 4)[0]
    assert answer.tokens_a_pass == 10 / 3  # the prompt's pass gives 1, then 5 and 4


def test_a_trees_path_that_stays_where_it_was_read_is_found_out(monkeypatch):
    monkeypatch.setattr(PagedCache, "keep", lambda self, blocks, start, places: None)
    assert served(speculating(Rivals(), 6)) != alone()


def test_a_tree_is_read_through_a_window():
    """The window counts positions: nodes of one depth are equally far from what is before."""
    model = build(replace(SMALL, window=5), dtype=torch.float64, seed=1)
    wanted = [a.tokens for a in Engine(model, 80, 4).generate(prompts(COUNT), ANSWER)]
    engine = SpeculativeEngine(model, 80, 4, proposer=EngineDrafts(Guesses(wanted), 7))
    assert [a.tokens for a in engine.generate(prompts(COUNT), ANSWER)] == wanted
    assert sum(step.kept for step in engine.steps) >= 15


class Guesses(Proposing):
    """The true answers, at every depth behind two rivals."""

    def __init__(self, answers: list[list[int]]) -> None:
        self.texts = [[*prompt, *answer] for prompt, answer in zip(prompts(COUNT), answers)]

    def tree(self, asked):
        tokens = list(asked.tokens)
        text = next(text for text in self.texts if text[: len(tokens)] == tokens)
        ahead = text[len(tokens) :][: asked.most // 3]
        nodes = [node for t in ahead for node in ((t + 1) % 61, (t + 2) % 61, t)]
        parents = [3 * (node // 3) - 1 for node in range(len(nodes))]
        return Draft(tuple(nodes), tuple(parents))


class Watching:
    """Looks at the hidden vectors that it is shown, and drafts what another does."""

    def __init__(self, proposer) -> None:
        self.proposer, self.seen = proposer, Counter()
        self.forget = proposer.forget

    def propose(self, requests):
        for asked in requests:
            end = len(asked.tokens) - 1
            first = end - len(asked.hidden)
            if first < end:
                cache = DenseCache.of(TARGET, 1, len(asked.tokens))
                hidden = read_on(TARGET, torch.tensor([asked.tokens]), cache)[0, first:end]
                torch.testing.assert_close(asked.hidden, hidden, rtol=1e-9, atol=1e-9)
                self.seen[asked.key] += len(asked.hidden)
        return self.proposer.propose(requests)


@pytest.mark.parametrize("mode", MODES)
def test_heads_are_shown_the_targets_own_vectors(mode):
    watching = Watching(Rivals())
    assert served(speculating(watching, **MODES[mode])) == alone()
    if mode == "batched":  # of all tokens that were computed, but the last one's
        assert min(watching.seen.values()) > 6


def check_cache(model, cache, texts):
    for row, text in enumerate(texts):
        assert cache.lengths[row] == len(text)
        fresh = DenseCache.of(model, 1, room=60)
        read_on(model, torch.tensor([text]), fresh)
        for held, expected in ((cache.keys, fresh.keys), (cache.values, fresh.values)):
            ours, theirs = held[:, row, :, : len(text)], expected[:, 0, :, : len(text)]
            torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("forgetful", [False, True])
def test_a_draft_models_cache_is_that_of_a_fresh_prefill_after_every_step(forgetful, monkeypatch):
    proposer = DraftModel(distorted(2, 0.2), rows=COUNT)
    if forgetful:  # what a cache that is not rolled back would hold is seen here
        monkeypatch.setattr(proposer.cache, "truncate", lambda lengths: None)
    engine = speculating(proposer)
    for prompt in prompts(COUNT):
        engine.add(prompt, ANSWER)

    def run():
        while engine.busy:
            engine.step()
            check_cache(proposer.model, proposer.cache, [r for r in proposer.read if r])

    seen = pytest.raises(AssertionError) if forgetful else nullcontext()
    with seen:
        run()


def test_a_length_observes_what_was_kept_and_ended_requests_are_forgotten():
    length = AdaptiveLength(Costs(0.05, tuple(1 + 0.02 * g for g in range(6))))
    seen, observe = [], length.observe
    length.observe = lambda *given: (seen.append(given[1:]), observe(*given))
    proposer = DraftModel(TARGET, rows=4)
    SpeculativeEngine(TARGET, 60, 4, proposer=EngineDrafts(proposer, length)).generate(
        prompts(4), ANSWER
    )
    assert all(drafted == kept for drafted, kept in seen), "the target keeps its own"
    assert max(drafted for drafted, _ in seen) == 5
    assert not length.seen and not proposer.rows.taken


def test_an_adaptive_length_gives_the_same_and_follows_what_is_kept():
    drafted = {}
    for name in ("the target itself", "another model"):
        length = AdaptiveLength(Costs(0.1, tuple(1 + 0.05 * g for g in range(7))))
        engine = speculating(PROPOSERS[name](), length)
        assert served(engine, max_new_tokens=24) == alone(max_new_tokens=24)
        drafted[name] = [step.drafted / COUNT for step in engine.steps]
    good, bad = drafted.values()
    assert max(good) == 6 and sum(bad[5:]) / len(bad[5:]) < 1


@pytest.mark.parametrize("name", ["a draft model", "eagle"])
def test_a_drawn_answer_depends_on_no_other_in_the_batch(name):
    asked = [replace(ANSWER, temperature=1.0, seed=seed) for seed in range(4)]

    def written(prompts, parameters):
        return [a.tokens for a in speculate(TARGET, PROPOSERS[name](), prompts, parameters)]

    texts = [[3, 1, 4], [15], [9, 2, 6, 5, 3, 5], [3, 1, 4]]
    together = written(texts, asked)
    assert [written([text], [one])[0] for text, one in zip(texts, asked)] == together
    assert together[0] != together[3], "the same prompt, another seed"


NARROW = SamplingParameters(3, temperature=1.0, top_k=3)


def drawn_answers(count: int) -> Counter[tuple[int, ...]]:
    """Of equal requests with seeds of their own, whose drafts are drawn."""
    proposer = DraftModel(distorted(2, 0.1), rows=64)
    engine = speculating(proposer, 3, drawn=True, num_blocks=500, block_size=4)
    asked = [replace(NARROW, seed=n) for n in range(count)]
    answers = engine.generate([[3, 1, 4]] * count, asked)
    assert sum(step.kept for step in engine.steps) > count // 4
    return Counter(tuple(answer.tokens) for answer in answers)


def exact_chances() -> dict[tuple[int, ...], float]:
    """Of each answer, by the target alone."""
    chances = {(): 1.0}
    for _ in range(NARROW.max_new_tokens):
        longer = {}
        for before, chance in chances.items():
            with torch.no_grad():
                logits = TARGET(torch.tensor([[3, 1, 4, *before]]))[0, -1].float()
            values, tokens = logits.topk(NARROW.top_k)
            for token, p in zip(tokens.tolist(), values.softmax(dim=-1).tolist()):
                longer[(*before, token)] = chance * p
        chances = longer
    return chances


def chi_square(count: int) -> float:
    found, expected = drawn_answers(count), exact_chances()
    assert set(found) <= set(expected)
    observed = torch.tensor([found[answer] for answer in expected], dtype=torch.float64)
    return p_value(observed, torch.tensor(list(expected.values()), dtype=torch.float64))


def test_drawn_drafts_leave_the_distribution_of_whole_answers():
    assert chi_square(1000) > 1e-3


def test_a_wrong_rule_for_drawn_drafts_changes_it(monkeypatch):
    monkeypatch.setattr(verification, "residual", lambda p, q, rejected: p)
    assert chi_square(1000) < 1e-6


def test_log_probabilities_and_stops_come_with_drawn_drafts():
    asked = replace(NARROW, max_new_tokens=8, log_probabilities=2)
    engine = speculating(DraftModel(TARGET, rows=2), drawn=True)
    answer = engine.generate([[3, 1, 4]], asked)[0]
    with torch.no_grad():
        logs = TARGET(torch.tensor([[3, 1, 4, *answer.tokens]]))[0, 2:-1].log_softmax(dim=-1)
    for row, one in zip(logs, answer.drawn, strict=True):
        assert one.log_probability == pytest.approx(float(row[one.token]), abs=1e-5)
    stop = answer.tokens[5]
    ended = engine.generate([[3, 1, 4]], replace(asked, stop_tokens=(stop,)))[0]
    assert ended.tokens == answer.tokens[: answer.tokens.index(stop)]
    assert ended.finish_reason == "stop"


@pytest.mark.parametrize(
    ("message", "drafts"),
    [
        ("0 drafts came", []),
        ("5 tokens came where 4", [Draft.chain([1] * 5)]),
        ("knows tokens 0 to 60", [Draft.chain([3, 61])]),
    ],
)
def test_a_proposer_that_says_what_nobody_asked_is_refused(message, drafts):
    saying = Proposing()
    saying.propose = lambda requests: drafts
    with pytest.raises(InputError, match=message):
        speculate(TARGET, saying, [[3, 1, 4]], ANSWER, 4)
    with pytest.raises(InputError, match="draft of -1"):
        speculate(TARGET, NGram(), [[3]], ANSWER, -1)
