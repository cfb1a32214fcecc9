"""Whatever the engine does about memory and time: the answers are those of `transformers`."""

from __future__ import annotations

import random

import pytest
import torch
from transformers import LlamaForCausalLM

from minitrain.bench.training import as_llama
from minitrain.data.assets.fetch import fetch, is_cached
from minitrain.inference.engine.engine import Engine
from minitrain.inference.parameters import SamplingParameters
from minitrain.model.config import ModelConfig
from minitrain.model.hub.llama2c import load_llama2c
from minitrain.model.transformer import Transformer, build

from .texts import prompts


@pytest.fixture(scope="module")
def stories() -> tuple[Transformer, LlamaForCausalLM, list[list[int]], list[list[int]]]:
    """The model, transformers', prompts, and transformers' greedy answers, one by one."""
    if is_cached("stories15M"):
        model, _ = load_llama2c(fetch("stories15M", progress=False))
    else:
        model = build(ModelConfig(300, 64, 3, 4, 2, 96, max_length=256), seed=1)
    peer = as_llama(model).eval()
    texts, answers = prompts(12, vocabulary=model.config.vocab_size), []
    for text in texts:
        ids = torch.tensor([text])
        told = peer.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=12,
            do_sample=False,
            pad_token_id=0,
            eos_token_id=None,
        )
        answers.append(told[0, len(text) :].tolist())
    return model, peer, texts, answers


MODES = {
    "one after the other": {"max_running": 1},
    "batched": {},
    "pages of one token": {"num_blocks": 400, "block_size": 1},
    "pages of 5 tokens": {"block_size": 5},
    "nothing shared": {"share_prefixes": False},
    "chunks of up to 11": {"budget": 11, "max_running": 10},
    "preempted": {"num_blocks": 7, "block_size": 4, "budget": 64},
    "preempted, in chunks of up to 13": {"num_blocks": 7, "block_size": 4, "budget": 13},
}


@pytest.mark.parametrize("mode", MODES)
def test_greedy_answers_are_transformers_token_for_token(mode, stories):
    model, _, texts, answers = stories
    engine = Engine(model, **{"num_blocks": 60, "max_running": 12, **MODES[mode]})
    rounds = 2 if "preempted" in mode else 1
    found = engine.generate(texts * rounds, SamplingParameters(12))
    assert [answer.tokens for answer in found] == answers * rounds
    assert engine.scheduler.blocks.used == 0
    preemptions = sum(step.preemptions for step in engine.steps)
    assert preemptions >= 20 if "preempted" in mode else preemptions == 0
    assert max(step.tokens for step in engine.steps) <= engine.scheduler.budget


def test_chunks_of_every_size_give_the_same(stories):
    model, _, texts, answers = stories
    chance = random.Random(5)
    for _ in range(3):
        engine = Engine(model, 60, block_size=chance.randint(2, 9), budget=8, max_running=8)
        for text in texts[:4]:
            engine.add(text, SamplingParameters(12))
        told = {}
        while engine.busy:
            engine.scheduler.budget = chance.randint(8, 30)
            for output in engine.step():
                told.setdefault(output.id, []).append(output.drawn.token)
        assert [told[f"request-{n}"] for n in range(4)] == answers[:4]
