"""Whatever the engine does about memory and time: the answers are those of `transformers`."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest
import torch

from minitrain.bench.training import as_llama
from minitrain.errors import InputError
from minitrain.inference.cache.paged import Part
from minitrain.inference.engine.engine import Engine
from minitrain.inference.engine.scheduler import Work
from minitrain.inference.parameters import SamplingParameters
from minitrain.inference.sampling import generate
from minitrain.inference.speculation.draft_model import DraftModel
from minitrain.inference.speculation.eagle import Eagle, EagleLayer
from minitrain.inference.speculation.medusa import Medusa, MedusaHeads
from minitrain.inference.speculation.ngram import NGram
from minitrain.inference.speculation.serving import EngineDrafts, SpeculativeEngine
from minitrain.model.config import ModelConfig
from minitrain.model.transformer import Transformer, build
from minitrain.parallel.tensor.layers import tensor_parallel
from minitrain.ranks.launch import launch

from .traffic import prompts

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


# A model with a sliding window gives back the blocks that have left it


WINDOW = 6
CONFIG = ModelConfig(61, 32, 2, heads=4, kv_heads=2, ffn_size=40, max_length=256, window=WINDOW)
MODEL = build(CONFIG, dtype=torch.float64)
LONG = [(7 * place) % 58 + 3 for place in range(60)]


def alone(prompt: list[int], new: int) -> list[int]:
    """By whole texts, without a cache."""
    return generate(MODEL, prompt, new, temperature=0)


def test_a_text_of_any_length_holds_a_windows_blocks():
    engine = Engine(MODEL, num_blocks=5, block_size=4, budget=8, max_running=1)
    told = engine.generate([LONG], SamplingParameters(40))[0].tokens
    assert told == alone(LONG, 40)
    # the window's 5 tokens before a chunk, the chunk, and a block for where they begin
    assert max(step.blocks_used for step in engine.steps) <= 5
    answering = [step for step in engine.steps if step.tokens == 1]
    assert max(step.blocks_used for step in answering) <= 3
    page = 2 * 2 * 2 * 4 * 8 * 8  # keys and values, layers, heads, places, C, float64
    assert all(step.bytes_used == step.blocks_used * page for step in engine.steps)
    assert all(0 <= step.empty_places < 4 for step in answering[:-1])
    assert engine.scheduler.blocks.left == (len(LONG) + 39 - WINDOW + 1) // 4
    assert engine.scheduler.blocks.used == 0


@pytest.mark.parametrize(
    "options",
    [
        {"num_blocks": 60},
        {"num_blocks": 300, "block_size": 1},
        {"num_blocks": 60, "block_size": 5, "budget": 9},
        {"num_blocks": 8, "budget": 9},
    ],
    ids=["roomy", "pages of one token", "chunks", "preempted"],
)
def test_answers_are_those_of_whole_texts(options):
    texts = [*prompts(4), LONG[:20], LONG[:20], LONG[:31]]
    engine = Engine(MODEL, **{"block_size": 4, "max_running": 5, **options})
    found = [answer.tokens for answer in engine.generate(texts, SamplingParameters(10))]
    assert found == [alone(text, 10) for text in texts]
    again = [answer.tokens for answer in engine.generate(texts, SamplingParameters(10))]
    assert again == found
    assert engine.scheduler.blocks.left > 0 and engine.scheduler.blocks.used == 0
    assert (sum(step.preemptions for step in engine.steps) > 0) == (options["num_blocks"] == 8)
    assert engine.scheduler.blocks.hit > 0 or options["num_blocks"] == 8


def test_a_chunk_that_no_pool_could_hold_is_refused():
    engine = Engine(MODEL, num_blocks=4, block_size=4, budget=8, max_running=1)
    with pytest.raises(InputError, match="need 5 blocks, and the pool has 4"):
        engine.add(LONG, SamplingParameters(4))


# The engine on 2 ranks, among which the model is split


SPLIT = ModelConfig(61, 32, 2, heads=4, kv_heads=2, ffn_size=40, max_length=256, qkv_bias=True)
DRAWN = SamplingParameters(10, temperature=1.5, top_p=0.95)


def engine(group=None, make=Engine, config=SPLIT, sequence=False) -> Engine:
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


def test_two_ranks_tell_what_one_tells_with_half_the_keys_each():
    greedy, drawn, size = answers()
    for found in launch(answers, ranks=2):  # 61 tokens: the last rank's share is filled up
        assert found == (greedy, drawn, size // 2)


def refused(group) -> None:
    with pytest.raises(InputError, match="key/value heads cannot be split"):
        engine(group, Engine, replace(SPLIT, kv_heads=1))
    with pytest.raises(InputError, match="ranks cannot share a token"):
        engine(group, Engine, sequence=True)


def test_what_ranks_cannot_serve_is_named():
    launch(refused, ranks=2)


DRAFTS = {
    "n-grams": lambda whole: NGram(),
    "a whole draft model": lambda whole: DraftModel(whole, rows=5),
    "a tree of heads": lambda whole: Medusa(
        MedusaHeads(whole, torch.arange(61)), [(0,), (1,), (0, 0), (0, 1), (0, 0, 0), (2,)]
    ),
    "a layer on hidden vectors": lambda whole: Eagle(EagleLayer(whole, torch.arange(61)), rows=5),
}


def speculated(group) -> dict[str, tuple[list[list[int]], int]]:
    """Answers by draft, and how many guesses were kept: each rank has the whole draft."""
    found = {}
    for name, draft in DRAFTS.items():
        drafts = EngineDrafts(draft(build(SPLIT, dtype=torch.float64)), 6)
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
