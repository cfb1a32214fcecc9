from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
import torch

from minitrain.errors import InputError
from minitrain.finetuning.many import AdapterBank
from minitrain.finetuning.model import adapt
from minitrain.inference.engine.engine import Engine
from minitrain.inference.load import latency
from minitrain.inference.parameters import SamplingParameters
from minitrain.inference.sampling import generate
from minitrain.model.config import ModelConfig
from minitrain.model.transformer import build

from .traffic import prompts

SMALL = ModelConfig(61, 32, layers=2, heads=4, kv_heads=2, ffn_size=40, max_length=256)
MODEL = build(SMALL, dtype=torch.float64)
DRAWN = SamplingParameters(max_new_tokens=12, temperature=1.5, top_k=40, top_p=0.95, seed=3)


def alone(prompt: list[int], parameters: SamplingParameters, model=MODEL) -> list[int]:
    """By the naive version, with the same cuts and the sampler's own draws."""
    return Engine(model, 64, max_running=1).generate([prompt], parameters)[0].tokens


def test_what_is_drawn_depends_on_seed_and_text_and_not_on_company():
    texts, before = prompts(9), torch.get_rng_state()
    wanted = [alone(text, replace(DRAWN, seed=n)) for n, text in enumerate(texts)]
    for order, options in (
        (range(9), {}),
        (reversed(range(9)), {"budget": 20, "max_running": 4}),
        (range(9), {"num_blocks": 7, "block_size": 4}),
    ):
        engine = Engine(MODEL, **{"num_blocks": 60, **options})
        for n in order:
            engine.add(texts[n], replace(DRAWN, seed=n), id=str(n))
        told = {str(n): [] for n in range(9)}
        for output in engine.stream():
            told[output.id].append(output.drawn.token)
        assert list(told.values()) == wanted
    assert sum(step.preemptions for step in engine.steps) >= 5
    assert torch.equal(before, torch.get_rng_state()), "torch's own generator is left alone"
    assert alone(texts[0], replace(DRAWN, seed=99)) != wanted[0]


def test_a_temperature_near_0_is_greedy():
    nearly = SamplingParameters(12, temperature=1e-30)
    assert alone([5, 6], nearly) == alone([5, 6], SamplingParameters(12))


def test_what_was_interrupted_goes_on(monkeypatch):
    """Ctrl-C in a notebook, in the middle of a step, and then stream() again."""
    texts = prompts(4)
    engine = Engine(MODEL, 60, block_size=4)
    told = {engine.add(text, DRAWN): [] for text in texts}
    for number in range(40):
        with monkeypatch.context() as patch:
            if number % 3 == 2:
                patch.setattr(engine.runner.model.norm, "forward", interrupted)
            try:
                for output in engine.step():
                    told[output.id].append(output.drawn.token)
            except KeyboardInterrupt:
                assert number % 3 == 2
    assert list(told.values()) == [alone(text, DRAWN) for text in texts]


def interrupted(x):
    raise KeyboardInterrupt


def test_a_stop_token_ends_an_answer_and_is_left_out():
    told = alone([5, 6], SamplingParameters(20))
    stop = next(t for t in told if told.index(t) > 2)
    answer = Engine(MODEL, 9).generate([[5, 6]], SamplingParameters(20, stop_tokens=(stop,)))[0]
    assert answer.tokens == told[: told.index(stop)]
    assert answer.finish_reason == "stop"
    whole = Engine(MODEL, 9).generate([[5, 6]], SamplingParameters(20))[0]
    assert whole.tokens == told and whole.finish_reason == "length"


def letters(tokens: list[int]) -> str:
    return "".join(chr(60 + token) for token in tokens)


def test_text_streams_and_ends_before_a_stop_string():
    told = letters(alone([5, 6], SamplingParameters(20)))
    engine = Engine(MODEL, 9, decode=letters)
    whole = engine.generate([[5, 6]], SamplingParameters(20))[0]
    assert whole.text == told
    stop = told[4:6]
    cut = engine.generate([[5, 6]], SamplingParameters(20, stop=stop))[0]
    assert cut.text == told[: told.index(stop)] and cut.finish_reason == "stop"


def test_requests_come_and_go_while_others_stream():
    engine = Engine(MODEL, 60)
    first = engine.add([1, 2, 3], SamplingParameters(8), id="first")
    told: dict[str, list[int]] = {}
    for output in engine.stream():
        told.setdefault(output.id, []).append(output.drawn.token)
        if output.id == first and len(told[first]) == 3:
            engine.add([4, 5], SamplingParameters(6), id="late")
            engine.add([7], SamplingParameters(50), id="cancelled")
        if output.id == "cancelled" and len(told["cancelled"]) == 2:
            assert engine.cancel("cancelled")
    assert told[first] == alone([1, 2, 3], SamplingParameters(8))
    assert told["late"] == alone([4, 5], SamplingParameters(6))
    assert told["cancelled"] == alone([7], SamplingParameters(2))
    assert not engine.cancel("cancelled") and not engine.cancel("nobody")
    assert engine.scheduler.blocks.used == 0 and engine.step() == []


def test_log_probabilities_are_the_models_own():
    parameters = replace(DRAWN, log_probabilities=3)
    answer = Engine(MODEL, 9).generate([[3, 1, 4]], parameters)[0]
    text = torch.tensor([[3, 1, 4, *answer.tokens]])
    with torch.no_grad():
        logs = MODEL(text)[0, 2:-1].log_softmax(dim=-1)  # of each token of the answer
    for row, drawn in zip(logs, answer.drawn):
        assert drawn.log_probability == pytest.approx(float(row[drawn.token]), abs=1e-5)
        values, tokens = row.topk(3)
        assert [token for token, _ in drawn.likeliest] == tokens.tolist()
        assert [value for _, value in drawn.likeliest] == pytest.approx(values.tolist(), abs=1e-5)


def test_times_and_metrics_are_the_clocks():
    ticks = itertools.count()
    engine = Engine(MODEL, 40, block_size=4, max_running=1, clock=lambda: float(next(ticks)))
    answers = engine.generate([[1, 2, 3], [4, 5]], SamplingParameters(4))
    for answer in answers:
        times = answer.times
        assert times.arrived < times.started < times.tokens[0] < times.tokens[-1] < times.ended
        assert times.first_token_seconds == times.tokens[0] - times.arrived
        assert len(times.between_tokens_seconds) == 3
    assert answers[1].times.queue_seconds > answers[0].times.queue_seconds
    found = latency([answer.times for answer in answers])
    assert found.total[50] == sum(answer.times.total_seconds for answer in answers) / 2
    assert found.between_tokens[99] >= found.between_tokens[50] > 0
    assert [step.tokens for step in engine.steps] == [3, 1, 1, 1, 2, 1, 1, 1]
    assert [step.empty_places for step in engine.steps][:3] == [1, 0, 3]
    assert engine.steps[0].waiting == 1 and engine.steps[-1].waiting == 0


def lora_of(seed: int, rank: int) -> torch.nn.Module:
    model = adapt(build(SMALL, dtype=torch.float64), "lora", rank=rank, alpha=8)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.requires_grad and name.endswith("B"):
                parameter.copy_(torch.randn(parameter.shape, generator=generator))
    return model


def test_each_request_has_its_own_adapter():
    adapted = {"french": lora_of(1, 2), "sql": lora_of(2, 4)}
    model = build(SMALL, dtype=torch.float64)
    bank = AdapterBank(model, 1e6)
    for name, one in adapted.items():
        bank.add(name, one)
    engine = Engine(model, 60, block_size=4, adapters=bank)
    prompt = prompts(1)[0]
    names = [None, "french", "sql", "french", None]
    told = {engine.add(prompt, SamplingParameters(8), name): [] for name in names}
    for output in engine.stream():
        told[output.id].append(output.drawn.token)
    for name, found in zip(names, told.values()):
        single = MODEL if name is None else adapted[name]
        assert found == generate(single, prompt, 8, temperature=0)
    assert len({tuple(found) for found in told.values()}) == 3
    bank.remove("sql")
    bank.add("sql", adapted["french"])  # the same name, and other keys and values
    again = engine.add(prompt, SamplingParameters(8), "sql")
    found = [output.drawn.token for output in engine.stream() if output.id == again]
    assert found == generate(adapted["french"], prompt, 8, temperature=0)
    with pytest.raises(InputError, match="no adapter is called 'sq'"):
        engine.add(prompt, adapter="sq")
    with pytest.raises(InputError, match="give the engine an AdapterBank"):
        Engine(MODEL, 9).add(prompt, adapter="sql")


def test_adapters_that_have_no_room_together_take_turns():
    model = build(SMALL, dtype=torch.float64)
    page = AdapterBank(build(SMALL, dtype=torch.float64), 1e6).pool.page_bytes
    bank = AdapterBank(model, 5 * page)  # a page of zeros, and 4 ranks
    adapted = {name: lora_of(seed, 4) for seed, name in enumerate("ab")}
    for name, one in adapted.items():
        bank.add(name, one)
    engine = Engine(model, 60, adapters=bank)
    told = {engine.add([3, 4], SamplingParameters(5), name): [] for name in "abab"}
    for output in engine.stream():
        told[output.id].append(output.drawn.token)
    for name, found in zip("abab", told.values()):
        assert found == generate(adapted[name], [3, 4], 5, temperature=0)


@pytest.mark.parametrize(
    "prompt, parameters, message",
    [
        ([], SamplingParameters(4), "prompt is empty"),
        ([1, 61], SamplingParameters(4), "token 61 is none"),
        ([1, -1], SamplingParameters(4), "token -1 is none"),
        ([1] * 250, SamplingParameters(7), "longer than the 256"),
        ([1] * 100, SamplingParameters(100), "need 13 blocks, and the pool has 9"),
        ([1], SamplingParameters(4, stop="x"), "decode"),
    ],
)
def test_what_cannot_be_served_is_refused_up_front(prompt, parameters, message):
    engine = Engine(MODEL, 9)
    with pytest.raises(InputError, match=message):
        engine.add(prompt, parameters)
    assert not engine.busy
    for no_prompts in ("text", [1, 2]):
        with pytest.raises(InputError, match="give a list of token numbers"):
            engine.generate(no_prompts)
    with pytest.raises(InputError, match="2 prompts and 1 parameters"):
        engine.generate([[1], [2]], [parameters])
    with pytest.raises(InputError):
        engine.generate([[1], prompt], parameters)
    assert not engine.busy  # nor is the first prompt left behind
    engine.add([1], SamplingParameters(2), id="one")
    with pytest.raises(InputError, match="being served"):
        engine.generate([[1]])
    with pytest.raises(InputError, match="already"):
        engine.add([1], id="one")
