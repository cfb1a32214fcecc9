"""An engine whose requests speculate gives every answer that it gives without."""

from __future__ import annotations

from dataclasses import replace

import pytest

from minitrain.errors import InputError
from minitrain.inference.engine.engine import Engine
from minitrain.inference.parameters import SamplingParameters
from minitrain.inference.speculation.drafts.model import DraftModel
from minitrain.inference.speculation.drafts.ngram import NGram
from minitrain.inference.speculation.length import AdaptiveLength, Costs
from minitrain.inference.speculation.serving import EngineDrafts

from ..engine.texts import prompts
from .test_writing import TARGET, Rivals, distorted

ANSWER = SamplingParameters(max_new_tokens=12)
CHEAP = Costs(0.05, tuple(1 + 0.02 * g for g in range(6)))
DRAFTS = {
    "a draft model": lambda: EngineDrafts(DraftModel(distorted(2, 0.2), rows=8)),
    "with too few rows": lambda: EngineDrafts(DraftModel(distorted(2, 0.2), rows=3), 3),
    "the target, adaptive": lambda: EngineDrafts(DraftModel(TARGET, rows=8), AdaptiveLength(CHEAP)),
    "n-grams": lambda: EngineDrafts(NGram()),
}


@pytest.mark.parametrize("name", DRAFTS)
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_every_request_of_a_batch_is_told_what_it_is_told_without_drafts(name, temperature):
    texts, parameters = prompts(8), replace(ANSWER, temperature=temperature)
    plain = Engine(TARGET, 60, block_size=4)
    wanted = [answer.tokens for answer in plain.generate(texts, parameters)]
    roomy = Engine(TARGET, 80, 4, proposer=DRAFTS[name]())
    assert [answer.tokens for answer in roomy.generate(texts, parameters)] == wanted
    crowded = Engine(TARGET, 7, 4, budget=9, max_running=5, proposer=DRAFTS[name]())
    assert [answer.tokens for answer in crowded.generate(texts, parameters)] == wanted
    assert sum(step.preemptions for step in crowded.steps) > 0
    if "model" in name and temperature == 0:  # at 1 a random model is near to uniform
        passes = [sum(step.requests for step in engine.steps) for engine in (roomy, plain)]
        assert passes[0] < 0.9 * passes[1], "drafts were kept"


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


def test_a_tree_is_refused():
    engine = Engine(TARGET, 60, 4, proposer=EngineDrafts(Rivals()))
    with pytest.raises(InputError, match="without trees"):
        engine.generate([[1, 2, 3]], ANSWER)
