"""Whoever drafts, the text is the target's own, and the caches hold what a fresh prefill gives."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import lru_cache

import pytest
import torch

from minitrain.errors import InputError
from minitrain.inference.cache.dense import DenseCache, read_on
from minitrain.inference.cached import generate_cached
from minitrain.inference.logits import draw, penalised
from minitrain.inference.parameters import SamplingParameters
from minitrain.inference.speculation.drafts.eagle import Eagle, EagleLayer
from minitrain.inference.speculation.drafts.medusa import Medusa, MedusaHeads
from minitrain.inference.speculation.drafts.model import DraftModel
from minitrain.inference.speculation.drafts.ngram import NGram
from minitrain.inference.speculation.drafts.self_draft import first_layers, quantized_draft
from minitrain.inference.speculation.length import AdaptiveLength, Costs, FixedLength
from minitrain.inference.speculation.proposer import Draft, shaped
from minitrain.inference.speculation.request import Request
from minitrain.inference.speculation.writing import propose, read_and_judge, speculate
from minitrain.model.transformer import build

from ...model.peers import SMALL
from .test_verification import p_value

PROMPTS = [[3, 1, 4], [15], [9, 2, 6, 5, 3, 5], [3, 1, 4]]
TARGET = build(SMALL, dtype=torch.float64, seed=1)
LATER = SamplingParameters(max_new_tokens=16)


def distorted(seed: int, by: float):
    """A model that is right now and then, as a draft is."""
    draft, noise = (
        build(SMALL, dtype=torch.float64, seed=1),
        build(SMALL, dtype=torch.float64, seed=seed),
    )
    with torch.no_grad():
        for own, other in zip(draft.parameters(), noise.parameters()):
            own.lerp_(other, by)
    return draft


BRANCHES = [(0,), (1,), (2,), (0, 0), (0, 1), (0, 0, 0)]


class Rivals:
    """A tree around what the target says: its greedy token and a rival at each depth; and now and
    then a lie, by the length of the text."""

    def propose(self, requests):
        return [self.tree(asked) for asked in requests]

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

    def forget(self, key):
        pass


PROPOSERS = {
    "a draft model": lambda: DraftModel(distorted(2, 0.2), rows=4),
    "with too few rows": lambda: DraftModel(distorted(2, 0.2), rows=3),
    "the target itself": lambda: DraftModel(TARGET, rows=4),
    "another model": lambda: DraftModel(build(SMALL, dtype=torch.float64, seed=5), rows=4),
    "int8": lambda: DraftModel(quantized_draft(TARGET, "int8"), rows=4),
    "nf4": lambda: DraftModel(quantized_draft(TARGET, "nf4"), rows=4),
    "int4": lambda: DraftModel(quantized_draft(TARGET, "int4-g32"), rows=4),
    "two layers": lambda: DraftModel(first_layers(TARGET, 2), rows=4),
    "its own text": lambda: NGram(),
    "medusa": lambda: Medusa(MedusaHeads(TARGET, torch.arange(61)), BRANCHES),
    "eagle": lambda: Eagle(EagleLayer(TARGET, torch.arange(0, 61, 2)), rows=4),
    "a tree with rivals": lambda: Rivals(),
}
PICK = ("its own text", "medusa", "a tree with rivals")


def alone(prompt, parameters=LATER):
    return _alone(tuple(prompt), parameters)


@lru_cache
def _alone(prompt, parameters):
    """Without drafts: greedy by the cached version, else the engine's draw, a number a token."""
    if parameters.greedy:
        return generate_cached(TARGET, list(prompt), parameters.max_new_tokens, temperature=0)
    cache, told = DenseCache.of(TARGET, 1, 100), []
    generator, unread = torch.Generator().manual_seed(parameters.seed), prompt
    while len(told) < parameters.max_new_tokens:
        logits = TARGET.head(read_on(TARGET, torch.tensor([unread]), cache)[0, -1:]).float()
        uniform = torch.rand((), generator=generator)
        told.append(int(draw(shaped(logits, parameters), uniform[None])))
        unread = told[-1:]
    return told


@pytest.mark.parametrize("name", PROPOSERS)
@pytest.mark.parametrize("length", [1, 4])
def test_greedy_texts_are_the_targets_own_token_for_token(name, length):
    requests = speculate(TARGET, PROPOSERS[name](), PROMPTS, LATER, length)
    assert [r.told for r in requests] == [alone(prompt) for prompt in PROMPTS]
    if name == "the target itself":
        assert all(kept == drafted for r in requests for drafted, kept in r.rounds)
        assert len(requests[0].rounds) == math.ceil(16 / (length + 1))


def test_drafts_are_kept_and_dropped_in_these_tests():
    """Else they would not show what a wrong rollback does."""
    for name in ("a draft model", "nf4", "a tree with rivals"):
        rounds = [
            r for one in speculate(TARGET, PROPOSERS[name](), PROMPTS, LATER, 4) for r in one.rounds
        ]
        kept, drafted = (sum(each) for each in zip(*[(k, d) for d, k in rounds]))
        assert 0.1 < kept / drafted < 0.98, name


@pytest.mark.parametrize("name", PICK)
@pytest.mark.parametrize("cuts", [{}, {"top_k": 9, "top_p": 0.9, "temperature": 0.7}])
def test_drawn_texts_of_picked_drafts_are_token_for_token_those_without_drafts(name, cuts):
    parameters = replace(LATER, **({"temperature": 1.0, "seed": 3} | cuts))
    requests = speculate(TARGET, PROPOSERS[name](), PROMPTS, parameters, 6)
    assert [r.told for r in requests] == [alone(prompt, parameters) for prompt in PROMPTS]


@pytest.mark.parametrize("name", ["a draft model", "eagle"])
def test_a_drawn_text_depends_on_no_other_in_the_batch(name):
    parameters = replace(LATER, temperature=1.0)

    def told(prompts, seeds, length=4):
        generators = [torch.Generator().manual_seed(seed) for seed in seeds]
        requests = speculate(TARGET, PROPOSERS[name](), prompts, parameters, length, generators)
        return [request.told for request in requests]

    together = told(PROMPTS, range(4))
    assert [told([prompt], [seed])[0] for seed, prompt in enumerate(PROMPTS)] == together
    assert together[0] != together[3], "the same prompt, another seed"


def test_pairs_that_are_written_with_drawn_drafts_are_distributed_as_the_targets_own():
    """Through models, caches and batches: 1,500 texts of one prompt, 5 likely tokens."""
    parameters, texts = SamplingParameters(2, temperature=1.0, top_k=5), 1500
    target, draft = distorted(2, 0.0), distorted(3, 0.4)
    with torch.no_grad():
        for model in (target, draft):
            model.head.weight *= 6  # sharper than random weights are
    generators = [torch.Generator().manual_seed(seed) for seed in range(texts)]
    requests = speculate(
        target, DraftModel(draft, texts, 8), [[3, 1]] * texts, parameters, 2, generators
    )
    kept = sum(k for one in requests for _, k in one.rounds)
    assert 0.1 * texts < kept < 0.9 * texts
    expected, counts = torch.zeros(61, 61), torch.zeros(61, 61)
    with torch.no_grad():
        first = shaped(target(torch.tensor([[3, 1]]))[:, -1], parameters).softmax(dim=-1)[0]
        for token in first.nonzero()[:, 0].tolist():
            logits = target(torch.tensor([[3, 1, token]]))[:, -1]
            expected[token] = first[token] * shaped(logits, parameters).softmax(dim=-1)[0]
    for one in requests:
        counts[one.told[0], one.told[1]] += 1
    assert p_value(counts.flatten().double(), expected.flatten()) > 1e-3


@pytest.mark.parametrize("name", ["a draft model", "a tree with rivals"])
def test_both_caches_are_those_of_a_fresh_prefill_after_every_round(name):
    proposer, length = PROPOSERS[name](), FixedLength(4)
    requests = [Request(key, prompt, LATER) for key, prompt in enumerate(PROMPTS)]
    cache = DenseCache.of(TARGET, 4, room=60)
    for _ in range(5):
        drafts = propose(proposer, requests, length, SMALL)
        verdicts = read_and_judge(TARGET, cache, requests, drafts)
        for request, verdict in zip(requests, verdicts):
            request.extend(verdict.tokens)
        check_cache(TARGET, cache, [request.tokens[:-1] for request in requests])
        if name == "a draft model":
            check_cache(proposer.model, proposer.cache, proposer.read)
            propose(proposer, requests, length, SMALL)  # asked twice: it rolls back
            check_cache(proposer.model, proposer.cache, proposer.read)
    assert any(0 < kept < 4 for request in requests for _, kept in request.rounds)


def check_cache(model, cache, texts):
    for row, text in enumerate(texts):
        assert cache.lengths[row] == len(text)
        fresh = DenseCache.of(model, 1, room=60)
        read_on(model, torch.tensor([text]), fresh)
        for held, expected in ((cache.keys, fresh.keys), (cache.values, fresh.values)):
            ours, theirs = held[:, row, :, : len(text)], expected[:, 0, :, : len(text)]
            torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-9)


def test_a_cache_that_is_not_rolled_back_is_seen():
    """What the target would write had it kept what it rejected."""

    class Forgetful(DenseCache):
        def truncate(self, lengths):
            pass

    request = Request(0, PROMPTS[0], LATER)
    cache = Forgetful(SMALL, 1, 60, dtype=torch.float64)
    drafts = propose(PROPOSERS["another model"](), [request], FixedLength(4), SMALL)
    request.extend(read_and_judge(TARGET, cache, [request], drafts)[0].tokens)
    assert request.rounds[0][1] < 4, "something was rejected"
    with pytest.raises(AssertionError):
        check_cache(TARGET, cache, [request.tokens[:-1]])


def test_a_stop_token_inside_an_accepted_run_ends_the_text():
    whole = alone(PROMPTS[2])
    stop = whole[7]
    parameters = replace(LATER, stop_tokens=(stop,))
    (request,) = speculate(TARGET, PROPOSERS["the target itself"](), PROMPTS[2:3], parameters, 9)
    assert request.told == whole[: whole.index(stop)]
    (request,) = speculate(
        TARGET, PROPOSERS["the target itself"](), PROMPTS[2:3], replace(LATER, max_new_tokens=3), 9
    )
    assert request.told == whole[:3]


def test_penalties_count_what_each_drafts_own_way_has_told():
    parameters = replace(LATER, repetition_penalty=1.5, frequency_penalty=0.7)
    expected = []
    for prompt in PROMPTS:
        text = list(prompt)
        for _ in range(LATER.max_new_tokens):
            with torch.no_grad():
                logits = TARGET(torch.tensor([text]))[0, -1]
            text.append(
                int(penalised(logits.float(), prompt, text[len(prompt) :], parameters).argmax())
            )
        expected.append(text[len(prompt) :])
    for name in ("a draft model", "a tree with rivals"):
        requests = speculate(TARGET, PROPOSERS[name](), PROMPTS, parameters, 4)
        assert [request.told for request in requests] == expected


def test_an_adaptive_length_writes_the_same_and_follows_what_is_kept():
    def rounds(name):
        length = AdaptiveLength(Costs(0.1, tuple(1 + 0.05 * g for g in range(7))))
        requests = speculate(TARGET, PROPOSERS[name](), PROMPTS, LATER, length)
        assert [request.told for request in requests] == [alone(prompt) for prompt in PROMPTS]
        return [drafted for request in requests for drafted, _ in request.rounds[1:-1]]

    good, bad = rounds("the target itself"), rounds("another model")
    assert max(good) == 6 and sum(bad) / len(bad) < 1.5


@pytest.mark.parametrize(
    ("message", "options"),
    [
        ("one prompt or more", {"prompts": []}),
        ("prompt is empty", {"prompts": [[]]}),
        ("2 generators", {"generators": [None, None]}),
        ("stop strings", {"parameters": SamplingParameters(stop=("end",))}),
        ("draft of -1", {"length": -1}),
    ],
)
def test_what_cannot_be_written_is_named(message, options):
    with pytest.raises(InputError, match=message):
        speculate(TARGET, NGram(), **({"prompts": PROMPTS[:1]} | options))


class Saying:
    def __init__(self, *drafts):
        self.drafts = drafts

    def propose(self, requests):
        return list(self.drafts)


@pytest.mark.parametrize(
    ("message", "drafts"),
    [
        ("0 drafts came", []),
        ("5 tokens came where 4", [Draft.chain([1] * 5)]),
        ("same tokenizer", [Draft.chain([3, 61])]),
    ],
)
def test_a_proposer_that_says_what_nobody_asked_is_named(message, drafts):
    with pytest.raises(InputError, match=message):
        speculate(TARGET, Saying(*drafts), PROMPTS[:1], LATER, 4)
