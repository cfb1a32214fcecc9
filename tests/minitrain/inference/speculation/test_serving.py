"""An engine whose requests speculate gives every answer that it gives without, whoever drafts."""

from __future__ import annotations

from collections import Counter
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
from minitrain.inference.speculation.drafts.model import DraftModel
from minitrain.inference.speculation.length import AdaptiveLength, Costs
from minitrain.inference.speculation.proposer import Draft
from minitrain.inference.speculation.serving import EngineDrafts
from minitrain.model.transformer import build

from ..engine.texts import prompts
from .test_verification import p_value
from .test_writing import PROPOSERS, SMALL, TARGET, Rivals, distorted

ANSWER = SamplingParameters(max_new_tokens=10)
COUNT = 5
CHEAP = Costs(0.05, tuple(1 + 0.02 * g for g in range(6)))
ROOMY = {"num_blocks": 80, "block_size": 4}
MODES = {
    "batched": ROOMY,
    "in chunks": {**ROOMY, "budget": 9, "max_running": 5},
    "preempted": {"num_blocks": 7, "block_size": 4, "budget": 9, "max_running": 5},
}


@lru_cache
def alone(temperature: float) -> list[list[int]]:
    engine = Engine(TARGET, **ROOMY)
    answers = engine.generate(prompts(COUNT), replace(ANSWER, temperature=temperature))
    return [answer.tokens for answer in answers]


def served(engine: Engine, temperature: float = 0.0) -> list[list[int]]:
    answers = engine.generate(prompts(COUNT), replace(ANSWER, temperature=temperature))
    assert engine.scheduler.blocks.used == 0
    return [answer.tokens for answer in answers]


@pytest.mark.parametrize("name", PROPOSERS)
def test_every_request_of_a_batch_is_told_what_it_is_told_without_drafts(name):
    for mode, options in MODES.items():
        drafts = EngineDrafts(PROPOSERS[name](), 6)
        engine = Engine(TARGET, **options, proposer=drafts)
        assert served(engine) == alone(0.0), mode
        if mode == "preempted":
            assert served(engine, 1.0) == alone(1.0), "and where prefixes are found"
        assert not drafts.open and not drafts.unshown
        assert (sum(step.preemptions for step in engine.steps) > 0) == (mode == "preempted")
        assert all(step.kept <= step.drafted for step in engine.steps)


@pytest.mark.parametrize("name", ["the target itself", "a tree with rivals"])
def test_drafts_that_are_right_save_passes(name):
    engine = Engine(TARGET, **ROOMY, proposer=EngineDrafts(PROPOSERS[name](), 4))
    assert served(engine) == alone(0.0)
    passes, kept = (sum(getattr(s, of) for s in engine.steps) for of in ("requests", "kept"))
    assert passes == COUNT * ANSWER.max_new_tokens - kept
    assert passes < 0.7 * COUNT * ANSWER.max_new_tokens


def test_a_trees_way_that_stays_where_it_was_read_is_found_out(monkeypatch):
    monkeypatch.setattr(PagedCache, "keep", lambda self, blocks, start, places: None)
    assert served(Engine(TARGET, **ROOMY, proposer=EngineDrafts(Rivals(), 6))) != alone(0.0)


def test_a_tree_is_read_through_a_window():
    """The window counts positions: nodes of one depth are equally far from what is before."""
    model = build(replace(SMALL, window=5), dtype=torch.float64, seed=1)
    wanted = [a.tokens for a in Engine(model, 80, 4).generate(prompts(COUNT), ANSWER)]
    engine = Engine(model, 80, 4, proposer=EngineDrafts(Guesses(wanted), 7))
    assert [a.tokens for a in engine.generate(prompts(COUNT), ANSWER)] == wanted
    assert sum(step.kept for step in engine.steps) >= 15


class Guesses:
    """The true answers, at every depth behind two rivals."""

    def __init__(self, answers: list[list[int]]) -> None:
        self.texts = [[*p, *told] for p, told in zip(prompts(COUNT), answers)]

    def propose(self, requests):
        return [self.tree(list(asked.tokens), asked.most) for asked in requests]

    def tree(self, tokens, most):
        text = next(text for text in self.texts if text[: len(tokens)] == tokens)
        ahead = text[len(tokens) :][: most // 3]
        nodes = [node for t in ahead for node in ((t + 1) % 61, (t + 2) % 61, t)]
        parents = [3 * (node // 3) - 1 for node in range(len(nodes))]
        return Draft(tuple(nodes), tuple(parents))

    def forget(self, key):
        pass


class Watching:
    """Looks at the hidden vectors that it is shown, and drafts nothing or what another does."""

    def __init__(self, proposer) -> None:
        self.proposer, self.seen = proposer, Counter()

    def propose(self, requests):
        for asked in requests:
            end = len(asked.tokens) - 1
            first = end - len(asked.hidden)
            if first == end:
                continue
            cache = DenseCache.of(TARGET, 1, len(asked.tokens))
            hidden = read_on(TARGET, torch.tensor([asked.tokens]), cache)[0, first:end]
            torch.testing.assert_close(asked.hidden, hidden, rtol=1e-9, atol=1e-9)
            self.seen[asked.key] += len(asked.hidden)
        return self.proposer.propose(requests)

    def forget(self, key):
        self.proposer.forget(key)


@pytest.mark.parametrize("mode", MODES)
def test_heads_are_shown_the_targets_own_vectors(mode):
    watching = Watching(Rivals())
    engine = Engine(TARGET, **MODES[mode], proposer=EngineDrafts(watching, 4))
    assert served(engine) == alone(0.0)
    if mode == "batched":  # of all tokens that were computed, but what was last told
        assert min(watching.seen.values()) > 6


def test_a_length_is_told_what_was_kept_and_ended_requests_are_forgotten():
    length = AdaptiveLength(CHEAP)
    drafts = EngineDrafts(DraftModel(TARGET, rows=4), length)
    seen = []
    observe = length.observe
    length.observe = lambda key, drafted, kept: (
        seen.append((drafted, kept)),
        observe(key, drafted, kept),
    )
    Engine(TARGET, 60, 4, proposer=drafts).generate(prompts(4), ANSWER)
    assert seen and all(drafted == kept for drafted, kept in seen), "the target keeps its own"
    assert max(drafted for drafted, _ in seen) == 5
    assert not drafts.open and not length.seen and not drafts.proposer.rows.taken


NARROW = SamplingParameters(3, temperature=1.0, top_k=3)


def drawn_answers(count: int) -> Counter[tuple[int, ...]]:
    """Of equal requests with seeds of their own, whose drafts are drawn."""
    drafts = EngineDrafts(DraftModel(distorted(2, 0.1), rows=64), 3, drawn=True)
    engine = Engine(TARGET, 500, 4, proposer=drafts)
    asked = [replace(NARROW, seed=n) for n in range(count)]
    answers = engine.generate([[3, 1, 4]] * count, asked)
    assert sum(step.kept for step in engine.steps) > count // 4
    return Counter(tuple(answer.tokens) for answer in answers)


def exact_chances() -> dict[tuple[int, ...], float]:
    """Of each answer, by the target alone."""
    chances = {(): 1.0}
    for _ in range(NARROW.max_new_tokens):
        longer = {}
        for told, chance in chances.items():
            with torch.no_grad():
                logits = TARGET(torch.tensor([[3, 1, 4, *told]]))[0, -1].float()
            values, tokens = logits.topk(NARROW.top_k)
            for token, p in zip(tokens.tolist(), values.softmax(dim=-1).tolist()):
                longer[(*told, token)] = chance * p
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
    drafts = EngineDrafts(DraftModel(TARGET, rows=2), 4, drawn=True)
    answer = Engine(TARGET, 60, 4, proposer=drafts).generate([[3, 1, 4]], asked)[0]
    with torch.no_grad():
        logs = TARGET(torch.tensor([[3, 1, 4, *answer.tokens]]))[0, 2:-1].log_softmax(dim=-1)
    for row, one in zip(logs, answer.drawn, strict=True):
        assert one.log_probability == pytest.approx(float(row[one.token]), abs=1e-5)
    stop = answer.tokens[5]
    ended = Engine(TARGET, 60, 4, proposer=drafts).generate(
        [[3, 1, 4]], replace(asked, stop_tokens=(stop,))
    )[0]
    assert ended.tokens == answer.tokens[: answer.tokens.index(stop)]
    assert ended.finish_reason == "stop" and not drafts.open


class Foreign:
    def propose(self, requests):
        return [Draft.chain([61]) for _ in requests]

    def forget(self, key):
        pass


def test_a_draft_of_another_vocabulary_is_refused():
    engine = Engine(TARGET, 60, 4, proposer=EngineDrafts(Foreign()))
    with pytest.raises(InputError, match="knows tokens 0 to 60"):
        engine.generate([[1, 2, 3]], ANSWER)
