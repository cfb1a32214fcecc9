"""Several answers to one prompt, and the tokens that end one."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from minitrain.errors import InputError
from minitrain.inference.engine.engine import Engine
from minitrain.inference.parameters import SamplingParameters
from minitrain.inference.sampling import generate, generate_cached
from minitrain.inference.speculation.draft_model import DraftModel
from minitrain.inference.speculation.serving import EngineDrafts, SpeculativeEngine
from minitrain.model.hub.load import load_pretrained
from minitrain.model.transformer import build

from ...model.peers import random_peer
from .test_engine import DRAWN, MODEL, SMALL, alone

PROMPT = list(range(3, 40))
WINDOWED = build(replace(SMALL, window=6), dtype=torch.float64)
MODES = {
    "roomy": {},
    "nothing shared": {"share_prefixes": False},
    "chunked": {"budget": 8, "max_running": 8},
    "one at once": {"max_running": 1},
    "crowded": {"num_blocks": 14},
    "drafts": {},
}


def speculating(model, *sizes, **options) -> SpeculativeEngine:
    drafts = EngineDrafts(DraftModel(MODEL, rows=4), 3)
    return SpeculativeEngine(model, *sizes, proposer=drafts, **options)


@pytest.mark.parametrize("mode", MODES)
def test_n_answers_are_those_of_their_seeds_and_read_the_prompt_once(mode):
    options = {"num_blocks": 60, "block_size": 4, **MODES[mode]}
    engine = speculating(MODEL, **options) if mode == "drafts" else Engine(MODEL, **options)
    found = {id: [] for id in engine.add(PROMPT, DRAWN, n=3)}
    for output in engine.stream():
        found[output.id].append(output.drawn.token)
    assert list(found.values()) == [alone(PROMPT, replace(DRAWN, seed=3 + i)) for i in range(3)]
    assert engine.scheduler.blocks.used == 0
    if mode in ("roomy", "nothing shared", "chunked"):
        assert sum(step.tokens for step in engine.steps) == 37 + 2 * 1 + 3 * 11
        assert max(step.blocks_used for step in engine.steps) <= 12 + 2 * 3  # of 12 each


def test_a_window_is_shared_too():
    engine = Engine(WINDOWED, 60, block_size=4)
    found = engine.generate([PROMPT, PROMPT[:9]], DRAWN, n=2)
    seeds = (DRAWN, replace(DRAWN, seed=4))
    wanted = [alone(p, one, WINDOWED) for p in (PROMPT, PROMPT[:9]) for one in seeds]
    assert [answer.tokens for answer in found] == wanted


@pytest.mark.parametrize("steps", [0, 1, 2, 3])
def test_the_first_of_n_may_be_cancelled_at_any_time(steps):
    engine = Engine(MODEL, 60, block_size=4, budget=16, max_running=8)
    ids = engine.add(PROMPT, SamplingParameters(6), id="x", n=3)
    assert ids == ["x", "x-1", "x-2"]
    found = {id: [] for id in ids}
    for _ in range(steps):
        for output in engine.step():
            found[output.id].append(output.drawn.token)
    engine.cancel("x")
    for output in engine.stream():
        found[output.id].append(output.drawn.token)
    wanted = generate(MODEL, PROMPT, 6, temperature=0)
    assert found["x-1"] == found["x-2"] == wanted
    assert sum(step.tokens for step in engine.steps) <= 37 + 1 + 3 * 5 + 1 + 16


def test_n_is_a_number_of_answers():
    engine = Engine(MODEL, 60)
    for n in (0, -1, 2.5, True, "3"):
        with pytest.raises(InputError, match=r"n is .* whole number of answers"):
            engine.add(PROMPT, n=n)
    engine.add([1], id="x-1")
    with pytest.raises(InputError, match="'x-1' already"):
        engine.add(PROMPT, id="x", n=2)
    assert list(engine.requests) == ["x-1"]
    assert len(engine.add(PROMPT, n=np.int64(2))) == 2


def test_an_answer_ends_before_the_models_own_end_token():
    whole = alone(PROMPT, SamplingParameters(20))
    model = build(SMALL, dtype=torch.float64)
    model.end_tokens = (whole[5],)
    for make in (Engine, speculating):
        answer = make(model, 60).generate([PROMPT], SamplingParameters(20))[0]
        assert answer.tokens == whole[: whole.index(whole[5])]
        assert answer.finish_reason == "stop"
    going_on = SamplingParameters(20, ignore_end=True)
    answer = Engine(model, 60).generate([PROMPT], going_on)[0]
    assert answer.tokens == whole and answer.finish_reason == "length"
    stopped = SamplingParameters(20, ignore_end=True, stop_tokens=(whole[3],))
    assert alone(PROMPT, stopped, model) == whole[: whole.index(whole[3])]


def test_a_model_of_transformers_is_refused_with_the_way_that_converts_it(tmp_path):
    torch.manual_seed(0)
    theirs = random_peer(SMALL, "llama", eos_token_id=2).float()
    for use in (
        lambda: Engine(theirs, 60),
        lambda: generate_cached(theirs, [1], 2),
        lambda: generate(theirs, [1], 2),
    ):
        with pytest.raises(InputError, match=r"LlamaForCausalLM of transformers .* load_pretr"):
            use()
    given = torch.tensor([PROMPT])
    free = theirs.generate(given, max_new_tokens=12, do_sample=False, eos_token_id=None)
    end = free[0, len(PROMPT) + 4].item()
    theirs.config.eos_token_id = theirs.generation_config.eos_token_id = end
    theirs.save_pretrained(tmp_path)
    model, _ = load_pretrained(tmp_path)
    assert model.end_tokens == (end,)
    written = theirs.generate(given, max_new_tokens=12, do_sample=False)[0, len(PROMPT) :].tolist()
    answer = Engine(model, 60).generate([PROMPT], SamplingParameters(12))[0]
    assert [*answer.tokens, end] == written and answer.finish_reason == "stop"


def test_other_modules_are_refused_by_name():
    for other, words in (
        (torch.nn.Linear(3, 3), "Linear is not a Transformer of this package"),
        (None, "NoneType is not a Transformer"),
        (torch.compile(MODEL), "OptimizedModule wraps the model"),
    ):
        with pytest.raises(InputError, match=words):
            Engine(other, 9)


def test_code_that_would_not_be_called_is_refused():
    model = build(SMALL)
    engine = Engine(model, 60)
    engine.generate([PROMPT], SamplingParameters(2))
    hook = model.blocks[1].register_forward_hook(lambda *given: None)
    for use in (lambda: engine.generate([PROMPT]), lambda: generate_cached(model, PROMPT, 2)):
        with pytest.raises(InputError, match=r"blocks\.1 has a forward hook, .*attention\.o"):
            use()
    hook.remove()
    model.blocks[0].attention.forward = lambda x, *rest: x
    with pytest.raises(InputError, match=r"blocks\.0\.attention has a forward of its own"):
        Engine(model, 60)
