"""What goes wrong with one request costs that request alone."""

from __future__ import annotations

import threading
from functools import partial

import pytest
import torch

from minitrain.errors import InputError
from minitrain.finetuning.many import AdapterBank
from minitrain.inference.engine.answer import Output
from minitrain.inference.engine.engine import Engine
from minitrain.inference.parameters import SamplingParameters
from minitrain.inference.sampling import generate
from minitrain.inference.speculation.draft_model import DraftModel
from minitrain.inference.speculation.serving import EngineDrafts, SpeculativeEngine, speculate
from minitrain.model.transformer import Transformer, build

from .test_engine import MODEL, SMALL, letters, lora_of

PROMPT = list(range(3, 40))
LENGTHS = (20, 7, 3)


def served(engine: Engine) -> dict[str, list[Output]]:
    found: dict[str, list[Output]] = {}
    for output in engine.stream():
        found.setdefault(output.id, []).append(output)
    return found


def tokens(outputs: list[Output]) -> list[int]:
    return [output.drawn.token for output in outputs]


def wanted(length: int, model: Transformer = MODEL) -> list[int]:
    return generate(model, PROMPT[:length], 6, temperature=0)


def test_nan_ends_the_request_that_has_it_and_is_left_to_nobody():
    """Neither to who stands beside it in the batch, nor to who is given its pages afterwards."""
    model, spoilt = build(SMALL, dtype=torch.float64), lora_of(1, 2)
    with torch.no_grad():
        spoilt.blocks[0].attention.q.adapter.lora_B.fill_(float("nan"))
    bank = AdapterBank(model, 1e6)
    bank.add("spoilt", spoilt)
    engine = Engine(model, 30, block_size=4, adapters=bank)
    bad = engine.add(PROMPT, SamplingParameters(6), "spoilt")
    good = {engine.add(PROMPT[:n], SamplingParameters(6)): n for n in LENGTHS}
    found = served(engine)
    assert found[bad][-1].finish_reason == "error" and len(found[bad]) == 1
    assert f"request '{bad}' ended with an error: it got logits that are no" in found[bad][-1].error
    for id, length in good.items():
        assert tokens(found[id]) == wanted(length)
    for length in (37, 5, 18):
        assert engine.generate([PROMPT[:length]], SamplingParameters(6))[0].tokens == wanted(length)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("drawn", [None, False, True])
def test_a_model_of_nan_is_no_token_0(temperature, drawn):
    model = build(SMALL, dtype=torch.float64)
    drafts = EngineDrafts(DraftModel(MODEL, rows=4), drawn=bool(drawn))
    speculating = partial(SpeculativeEngine, proposer=drafts)
    engine = (Engine if drawn is None else speculating)(model, 60)
    asked = SamplingParameters(8, temperature)
    engine.add(PROMPT, asked)
    engine.step()
    with torch.no_grad():
        model.norm.weight.fill_(float("nan"))
    with pytest.raises(InputError, match="being served"):
        engine.generate([PROMPT], asked)
    assert next(engine.stream()).finish_reason == "error" and not engine.busy
    for write in (
        lambda: engine.generate([PROMPT], asked),
        lambda: generate(model, PROMPT, 3, temperature),
        lambda: speculate(model, DraftModel(MODEL), [PROMPT], asked),
    ):
        with pytest.raises(InputError, match="logits that are no numbers"):
            write()


def test_a_request_ends_with_its_adapter():
    model, adapted = build(SMALL, dtype=torch.float64), {"a": lora_of(1, 2), "b": lora_of(2, 2)}
    bank = AdapterBank(model, 1e6)
    for name, one in adapted.items():
        bank.add(name, one)
    engine = Engine(model, 60, block_size=4, adapters=bank)
    ids = [engine.add(PROMPT, SamplingParameters(6), name) for name in ("a", "b", None)]
    begun = engine.step()
    bank.remove("a")
    bank.add("a", adapted["b"])  # under its name another one
    found = served(engine)
    assert "adapter 'a' was removed while it was in use" in found[ids[0]][-1].error
    for output, one in zip(begun[1:], (adapted["b"], MODEL)):
        own = generate(one, PROMPT, 6, temperature=0)
        assert [output.drawn.token, *tokens(found[output.id])] == own
    assert engine.scheduler.blocks.used == 0


def test_who_cannot_be_decoded_ends_alone():
    def decode(some: list[int]) -> str:
        return letters(some) if 7 not in some else {}[7]

    engine = Engine(MODEL, 60, decode=decode)
    with pytest.raises(InputError, match=r"the prompt could not be decoded \(KeyError: 7\)"):
        engine.add([3, 4, 7], SamplingParameters(6))
    bad, good = (engine.add(p, SamplingParameters(6)) for p in ([3, 4, 2], PROMPT[:3]))
    engine.requests[bad].text.decode = engine.requests[bad].text.window.decode = {}.__getitem__
    found = served(engine)
    assert "its text could not be decoded (TypeError: unhashable" in found[bad][-1].error
    assert tokens(found[good]) == wanted(3)


def test_who_makes_a_pass_fail_ends_alone(monkeypatch):
    model = build(SMALL, dtype=torch.float64)
    engine, embed = Engine(model, 60, block_size=4), model.embed.forward

    def sick(some):
        if (some == 50).any():
            raise RuntimeError("no room for token 50")
        return embed(some)

    monkeypatch.setattr(model.embed, "forward", sick)
    bad = [engine.add(prompt, SamplingParameters(6)) for prompt in ([3, 50], [50, 4, 5])]
    good = {engine.add(PROMPT[:n], SamplingParameters(6)): n for n in LENGTHS}
    found = served(engine)
    assert [found[id][-1].finish_reason for id in bad] == ["error", "error"]
    assert engine.steps[0].tokens == sum(LENGTHS), "what failed is not counted"
    assert "its forward pass failed (RuntimeError: no room" in found[bad[0]][-1].error
    for id, length in good.items():
        assert tokens(found[id]) == wanted(length)
    mixed = engine.generate([[50], PROMPT[:7]], SamplingParameters(6))
    assert mixed[0].error and not mixed[1].error and mixed[1].tokens == wanted(7)
    with pytest.raises(RuntimeError, match="token 50"):  # of several, all: the model's own fault
        engine.generate([[50], [50, 3]])


@pytest.mark.parametrize("vocab_size", [40, 80])
def test_a_draft_model_of_another_vocabulary_is_refused_up_front(vocab_size):
    draft = DraftModel(build(SMALL.__class__(vocab_size, 32, 1, 4, 2, 40)))
    words = f"the draft model knows {vocab_size} tokens and its target 61"
    with pytest.raises(InputError, match=words):
        SpeculativeEngine(MODEL, 60, proposer=EngineDrafts(draft))
    with pytest.raises(InputError, match=words):
        speculate(MODEL, draft, [PROMPT])


def test_threads_may_add_while_another_steps():
    engine, ids = Engine(MODEL, 200, block_size=4), []

    def add(length: int) -> None:
        for _ in range(10):
            ids.append(engine.add(PROMPT[:length], SamplingParameters(2)))

    threads = [threading.Thread(target=add, args=(3 + n,)) for n in range(5)]
    for thread in threads:
        thread.start()
    found: dict[str, int] = {}
    while engine.busy or any(thread.is_alive() for thread in threads):
        for output in engine.step():
            found[output.id] = found.get(output.id, 0) + 1
    assert len(set(ids)) == 50 and found == dict.fromkeys(ids, 2)
