"""Whoever drafts, the text is the target's own, and the caches hold what a fresh prefill gives."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

import pytest
import torch

from minitrain.data.assets.fetch import fetch, is_cached
from minitrain.errors import InputError
from minitrain.inference.cache.dense import DenseCache, read_on
from minitrain.inference.cached import generate_cached
from minitrain.inference.logits import draw
from minitrain.inference.parameters import SamplingParameters
from minitrain.inference.speculation.drafts.eagle import Eagle, EagleLayer
from minitrain.inference.speculation.drafts.lessons import own_text
from minitrain.inference.speculation.drafts.medusa import Medusa, MedusaHeads
from minitrain.inference.speculation.drafts.model import DraftModel
from minitrain.inference.speculation.drafts.ngram import NGram
from minitrain.inference.speculation.drafts.self_draft import first_layers, quantized_draft
from minitrain.inference.speculation.length import AdaptiveLength, Costs
from minitrain.inference.speculation.proposer import Draft, shaped
from minitrain.inference.speculation.request import Request
from minitrain.inference.speculation.writing import propose, read_and_judge, speculate
from minitrain.model.hub.llama2c import load_llama2c
from minitrain.model.transformer import build

from ...model.peers import SMALL
from .test_verification import p_value

PROMPTS = [[3, 1, 4], [15], [9, 2, 6, 5, 3, 5], [3, 1, 4]]
TARGET = build(SMALL, dtype=torch.float64, seed=1)
LATER = SamplingParameters(max_new_tokens=30)


def distorted(seed: int, by: float):
    """A model that is right now and then, as a draft is."""
    draft, noise = build(SMALL, dtype=torch.float64, seed=1), build(SMALL, dtype=torch.float64, seed=seed)
    with torch.no_grad():
        for own, other in zip(draft.parameters(), noise.parameters()):
            own.lerp_(other, by)
    return draft


@lru_cache
def lessons():
    return own_text(TARGET, [1], 8, 20, generator=torch.Generator().manual_seed(0))


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
    "medusa": lambda: Medusa(MedusaHeads(TARGET, torch.arange(61)), lessons(), nodes=6),
    "eagle": lambda: Eagle(EagleLayer(TARGET, torch.arange(0, 61, 2)).double(), rows=4),
    "a tree with rivals": lambda: Rivals(),
}
PICK = ("its own text", "medusa", "a tree with rivals")


def alone(prompt, parameters=LATER):
    """Without drafts: greedy by the cached version, else the engine's draw, a number a token."""
    if parameters.greedy:
        return generate_cached(TARGET, prompt, parameters.max_new_tokens, temperature=0)
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
        assert len(requests[0].rounds) == 30 / (length + 1)


def test_drafts_are_kept_and_dropped_in_these_tests():
    """Else they would not show what a wrong rollback does."""
    for name in ("a draft model", "nf4", "a tree with rivals"):
        rounds = [r for one in speculate(TARGET, PROPOSERS[name](), PROMPTS, LATER, 4) for r in one.rounds]
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
    def told(prompts, seeds):
        generators = [torch.Generator().manual_seed(seed) for seed in seeds]
        return [r.told for r in speculate(TARGET, PROPOSERS[name](), prompts, parameters, 4, generators)]
    together = told(PROMPTS, range(4))
    assert [told([prompt], [seed])[0] for seed, prompt in enumerate(PROMPTS)] == together
    assert together[0] != together[3], "the same prompt, another seed"
