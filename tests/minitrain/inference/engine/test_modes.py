"""Whatever the engine does about memory and time: the answers are those of `transformers`."""

from __future__ import annotations

import pytest
import torch

from minitrain.bench.training import as_llama
from minitrain.data.assets.fetch import fetch, is_cached
from minitrain.inference.cache.paged import Part
from minitrain.inference.engine.engine import Engine
from minitrain.inference.engine.scheduler import Work
from minitrain.inference.parameters import SamplingParameters
from minitrain.model.config import ModelConfig
from minitrain.model.hub.llama2c import load_llama2c
from minitrain.model.transformer import Transformer, build

from .texts import prompts

Served = tuple[Transformer, list[list[int]], list[list[int]]]


def answered(model: Transformer, count: int, new: int) -> Served:
    """The model, prompts, and transformers' greedy answers to them, one by one."""
    peer = as_llama(model).eval()
    texts, answers = prompts(count, vocabulary=model.config.vocab_size), []
    for text in texts:
        ids = torch.tensor([text])
        told = peer.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=new,
            do_sample=False,
            pad_token_id=0,
            eos_token_id=None,
        )
        answers.append(told[0, len(text) :].tolist())
    return model, texts, answers


@pytest.fixture(scope="module")
def small() -> Served:
    return answered(build(ModelConfig(300, 32, 2, 4, 2, 48, max_length=256), seed=1), 12, 12)


@pytest.fixture(scope="module")
def stories() -> Served:
    return answered(load_llama2c(fetch("stories15M", progress=False))[0], 6, 8)


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
def test_greedy_answers_are_transformers_token_for_token(mode, small):
    model, texts, answers = small
    engine = Engine(model, **{"num_blocks": 60, "max_running": 12, **MODES[mode]})
    rounds = 2 if "preempted" in mode else 1
    found = engine.generate(texts * rounds, SamplingParameters(12))
    assert [answer.tokens for answer in found] == answers * rounds
    assert engine.scheduler.blocks.used == 0
    preemptions = sum(step.preemptions for step in engine.steps)
    assert preemptions >= 20 if "preempted" in mode else preemptions == 0
    assert max(step.tokens for step in engine.steps) <= engine.scheduler.budget


@pytest.mark.skipif(not is_cached("stories15M"), reason="python -m minitrain assets stories15M")
@pytest.mark.parametrize(
    "mode",
    [{"num_blocks": 60}, {"num_blocks": 6, "block_size": 4, "budget": 9, "max_running": 5}],
    ids=["batched", "preempted, in chunks"],
)
def test_a_trained_models_answers_are_too(mode, stories):
    model, texts, answers = stories
    engine = Engine(model, **mode)
    assert [a.tokens for a in engine.generate(texts, SamplingParameters(8))] == answers
    assert (sum(step.preemptions for step in engine.steps) > 0) == ("block_size" in mode)


@property
def one_too_far(work: Work) -> Part:
    """nano-vllm before f5b4840: an answer's token stands at the text's length, not one before."""
    answering = work.start >= len(work.request.prompt)
    positions = [work.start + 1] if answering else None
    return Part(work.request.table.blocks, work.start, work.count, positions)


def test_a_position_off_by_one_is_another_answer_f5b4840(small, monkeypatch):
    model, texts, answers = small
    monkeypatch.setattr(Work, "part", one_too_far)
    found = Engine(model, 60).generate(texts, SamplingParameters(12))
    assert [answer.tokens[0] for answer in found] == [answer[0] for answer in answers]
    assert [answer.tokens for answer in found] != answers
