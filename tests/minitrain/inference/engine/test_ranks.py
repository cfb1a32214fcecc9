"""The engine on 2 ranks, among which the model is split."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest
import torch

from minitrain.errors import InputError
from minitrain.inference.engine.engine import Engine
from minitrain.inference.parameters import SamplingParameters
from minitrain.inference.speculation.draft_model import DraftModel
from minitrain.inference.speculation.eagle import Eagle, EagleLayer
from minitrain.inference.speculation.medusa import Medusa, MedusaHeads
from minitrain.inference.speculation.ngram import NGram
from minitrain.inference.speculation.serving import EngineDrafts, SpeculativeEngine
from minitrain.model.config import ModelConfig
from minitrain.model.transformer import build
from minitrain.parallel.tensor.layers import tensor_parallel
from minitrain.ranks.launch import launch

from .texts import prompts

CONFIG = ModelConfig(61, 32, 2, heads=4, kv_heads=2, ffn_size=40, max_length=256, qkv_bias=True)
DRAWN = SamplingParameters(10, temperature=1.5, top_p=0.95)


def engine(group=None, make=Engine, config=CONFIG, sequence=False) -> Engine:
    model = build(config, dtype=torch.float64)
    if group is not None:
        model = tensor_parallel(model, group, sequence)
    return make(model, 9, block_size=4, budget=12, max_running=5, group=group)


def answers(group=None) -> tuple[list[list[int]], list[list[int]], int]:
    """Greedy and drawn, and how many numbers of keys the pool holds."""
    served = engine(group)
    greedy, drawn = (served.generate(prompts(6), p) for p in (SamplingParameters(10), DRAWN))
    assert sum(step.preemptions for step in served.steps) > 0
    told = [[answer.tokens for answer in each] for each in (greedy, drawn)]
    return *told, served.runner.cache.keys.numel()


def refused(group, config, sequence) -> str:
    with pytest.raises(InputError) as error:
        engine(group, Engine, config, sequence)
    return str(error.value)


def test_two_ranks_tell_what_one_tells_with_half_the_keys_each():
    greedy, drawn, size = answers()
    for found in launch(answers, ranks=2):  # 61 tokens: the last rank's share is filled up
        assert found == (greedy, drawn, size // 2)


@pytest.mark.parametrize(
    "config, sequence, message",
    [
        (replace(CONFIG, kv_heads=1), False, "key/value heads cannot be split"),
        (CONFIG, True, "ranks cannot share a token"),
    ],
)
def test_what_ranks_cannot_serve_is_named(config, sequence, message):
    assert all(message in said for said in launch(refused, config, sequence, ranks=2))


DRAFTS = {
    "n-grams": lambda whole: NGram(),
    "a whole draft model": lambda whole: DraftModel(whole, rows=5),
    "a tree of heads": lambda whole: Medusa(
        MedusaHeads(whole, torch.arange(61)),
        [(0,), (1,), (0, 0), (0, 1), (0, 0, 0), (2,)],
    ),
    "a layer on hidden vectors": lambda whole: Eagle(EagleLayer(whole, torch.arange(61)), rows=5),
}


def speculated(group) -> dict[str, tuple[list[list[int]], int]]:
    """Answers by draft, and how many guesses were kept: each rank has the whole draft."""
    found = {}
    for name, draft in DRAFTS.items():
        drafts = EngineDrafts(draft(build(CONFIG, dtype=torch.float64)), 6)
        served = engine(group, partial(SpeculativeEngine, proposer=drafts))
        answers = served.generate(prompts(6), SamplingParameters(10))
        kept = sum(step.kept for step in served.steps)
        found[name] = [answer.tokens for answer in answers], kept
    return found


def test_two_ranks_speculate_with_every_draft():
    wanted = [answer.tokens for answer in engine().generate(prompts(6), SamplingParameters(10))]
    one, other = launch(speculated, ranks=2)
    assert one == other
    assert all(told == wanted for told, _ in one.values())
    assert one["a whole draft model"][1] > 20
