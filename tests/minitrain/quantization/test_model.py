from __future__ import annotations

from itertools import product

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from minitrain.errors import InputError
from minitrain.quantization.calibration import Calibration
from minitrain.quantization.formats.names import named
from minitrain.quantization.layers.fake import (
    FakeQuantLinear,
    convert_qat,
    prepare_qat,
    straight_through,
)
from minitrain.quantization.layers.linear import QuantLinear
from minitrain.quantization.methods.method import METHODS, WEIGHT_METHODS, Method
from minitrain.quantization.model import held_bytes, layer_names, quantize_model
from minitrain.quantization.sensitivity import Cost, deal_bits, sensitivities
from minitrain.training.loop import evaluate

from .toys import calibration, fresh, held_out, tokens, trained


def nats(name, form):
    model = quantize_model(trained(), named(form), METHODS[name], calibration())
    return evaluate(model, held_out())


def test_methods_rank_as_published():
    """In shape: GPTQ's README; fewer bits hurt more, and GPTQ less than nearest."""
    clean = evaluate(trained(), held_out())
    forms = ("int8-row", "int4-row", "int3-row")
    found = {(m, f): nats(m, f) for m in ("rtn", "gptq") for f in forms}
    for method in ("rtn", "gptq"):
        losses = [found[method, form] - clean for form in forms]
        assert losses[0] < losses[1] < losses[2] and abs(losses[0]) < 0.002
    assert found["gptq", "int3-row"] - clean < 0.8 * (found["rtn", "int3-row"] - clean)
    assert nats("rtn", "int3-g32") < found["rtn", "int3-row"]


@pytest.mark.parametrize("method", WEIGHT_METHODS)
def test_every_layer_of_the_blocks_is_exchanged_and_bytes_fall(method):
    model = trained()
    before, embed = held_bytes(model), model.embed.weight.clone()
    done = []
    quantize_model(model, named("int4-g32"), METHODS[method], calibration(), done.append)
    assert sorted(done) == sorted(layer_names(trained())) and not layer_names(model)
    layers = [m for m in model.modules() if isinstance(m, QuantLinear)]
    assert len(layers) == 14 and torch.equal(model.embed.weight, embed)
    weights = sum(m.in_features * m.out_features for m in layers)
    assert held_bytes(model) == before - 4 * weights + sum(m.weight.nbytes for m in layers)
    assert sum(m.weight.nbytes for m in layers) < 1.01 * weights * 5.4 / 8  # 96 and 48 fill no 32s


def test_a_layer_is_calibrated_on_what_quantized_layers_hand_on():
    seen = {}

    def spy(weight, statistics, form):
        seen[len(seen)] = statistics.second_moment
        return form.quantize(weight)

    model, form = trained(), named("int2-row")
    quantize_model(model, form, Method(round=spy), calibration())
    whole = trained()
    last = {"mlp.down": whole.blocks[1].mlp.down}
    texts = Calibration(whole, calibration())
    texts.advance(whole.blocks[0])
    of_float = texts.statistics(whole.blocks[1], last)["mlp.down"].second_moment
    rough = trained()
    texts = Calibration(rough, calibration())
    quantize_model(rough, {n: form for n in layer_names(rough) if n != "blocks.1.mlp.down"})
    texts.advance(rough.blocks[0])
    last = {"mlp.down": rough.blocks[1].mlp.down}
    of_quantized = texts.statistics(rough.blocks[1], last)["mlp.down"].second_moment
    torch.testing.assert_close(seen[13], of_quantized)
    assert not torch.allclose(seen[13], of_float, rtol=0.1)


def test_padding_is_not_counted():
    batch = calibration()[0]
    model, block = trained(), trained().blocks[0]
    padded = type(batch)(batch.tokens, batch.targets, batch.documents.clone(), batch.positions)
    padded.documents[:, 30:] = -1
    found = Calibration(model, [padded]).statistics(block, {"q": block.attention.q})["q"]
    assert found.tokens == 16 * 30


@pytest.mark.parametrize(
    ("form", "method", "answer"),
    [
        ("int4", "gptq", "no batch to calibrate on"),
        ("mxfp4", "gptq", "column by column"),
        ("nf4-b64", "gptq", "straddle"),
        ("int4", "llm-int8", "int8-row"),
    ],
)
def test_what_does_not_fit_is_refused_before_anything_is_changed(form, method, answer):
    model = fresh(ffn_size=160)
    batches = [] if "no batch" in answer else calibration()
    with pytest.raises(InputError, match=answer):
        quantize_model(model, named(form), METHODS[method], batches)
    assert len(layer_names(model)) == 14


def test_wrong_models_and_layers_are_refused():
    model = quantize_model(fresh(), named("int8"))
    with pytest.raises(InputError, match="quantized already"):
        quantize_model(model, named("int8"))
    with pytest.raises(InputError, match=r"did you mean 'blocks\.0\.mlp\.up'"):
        quantize_model(fresh(), {"block.0.mlp.up": named("int8")})
    with pytest.raises(InputError, match="no layer has a format"):
        quantize_model(fresh(), {})


# ---- quantization-aware training ----


def test_the_straight_through_estimator_passes_the_gradient_on():
    weight = torch.randn(8, 32, requires_grad=True)
    rounded = straight_through(weight, named("int3-row"))
    assert torch.equal(rounded, named("int3-row").quantize(weight).dequantize())
    dy = torch.randn(8, 32)
    assert torch.equal(torch.autograd.grad(rounded, weight, dy)[0], dy)


@pytest.mark.parametrize("form", ["int3-row", "nf4", "mxfp4"])
def test_what_is_trained_is_what_is_deployed(form):
    model = prepare_qat(fresh(qkv_bias=True), named(form))
    prepared = model(tokens())
    names = dict(fresh(qkv_bias=True).named_parameters()).keys()
    assert dict(model.named_parameters()).keys() == names
    assert sum(isinstance(m, FakeQuantLinear) for m in model.modules()) == 14
    convert_qat(model)
    assert not any(isinstance(m, FakeQuantLinear) for m in model.modules())
    assert torch.equal(model(tokens()), prepared)
    assert type(model.head) is torch.nn.Linear
    with pytest.raises(InputError, match="call prepare_qat"):
        convert_qat(model)
    with pytest.raises(InputError, match=r"no nn\.Linear"):
        prepare_qat(torch.nn.Sequential(), named("int8"))


def test_a_forward_that_calibrates_ends_where_the_last_layer_has_read():
    model = trained()
    block, whole = model.blocks[0], Calibration(model, calibration())
    layers = {n: m for n, m in block.named_modules() if isinstance(m, torch.nn.Linear)}
    calls = []
    hooks = [m.register_forward_hook(lambda *_, n=n: calls.append(n)) for n, m in layers.items()]
    found = whole.statistics(block, {"attention.o": layers["attention.o"]})["attention.o"]
    assert set(calls) == {"attention.q", "attention.k", "attention.v"}
    for hook in hooks:
        hook.remove()
    every = whole.statistics(block, layers)["attention.o"]  # runs on to `down`
    assert torch.equal(found.products, every.products) and found.tokens == every.tokens


# ---- the sensitivity of each layer ----

FORMS = [named(name) for name in ("int2-g32", "int4-g32", "int8-row")]


def test_each_layer_is_rounded_alone_and_the_model_left_as_it_was():
    model, batches = trained(), calibration()[:2]
    before = {name: p.clone() for name, p in model.named_parameters()}
    costs = sensitivities(model, FORMS, batches)
    assert list(costs) == layer_names(model)
    assert all(torch.equal(p, before[name]) for name, p in model.named_parameters())
    name = "blocks.1.mlp.down"
    alone = quantize_model(trained(), {name: FORMS[0]})
    expected = evaluate(alone, batches) - evaluate(model, batches)
    assert costs[name][FORMS[0]].loss == pytest.approx(expected, abs=1e-9)
    assert costs[name][FORMS[0]].nbytes == alone.get_submodule(name).weight.nbytes
    worst = max(costs, key=lambda name: costs[name][FORMS[0]].loss)
    assert costs[worst][FORMS[0]].loss > 10 * abs(costs[worst][FORMS[2]].loss)


@given(st.integers(0, 10**6), st.floats(0, 1))
@settings(max_examples=40, deadline=None)
def test_the_choice_is_the_best_of_all(seed, part):
    generator = torch.Generator().manual_seed(seed)
    draw = lambda: torch.randint(1, 30, (1,), generator=generator).item()  # noqa: E731
    costs = {f"l{i}": {form: Cost(draw(), draw() / 8 - 1) for form in FORMS} for i in range(4)}
    least, most = (
        sum(pick(cost.nbytes for cost in choices.values()) for choices in costs.values())
        for pick in (min, max)
    )
    budget = least + int(part * (most - least))

    def total(forms, what):
        return sum(getattr(costs[name][form], what) for name, form in zip(costs, forms))

    fitting = [f for f in product(FORMS, repeat=4) if total(f, "nbytes") <= budget]
    best = min(total(forms, "loss") for forms in fitting)
    dealt = tuple(deal_bits(costs, budget).values())
    assert total(dealt, "nbytes") <= budget
    assert total(dealt, "loss") == pytest.approx(best)
    with pytest.raises(InputError, match="too small"):
        deal_bits(costs, least - 1)
