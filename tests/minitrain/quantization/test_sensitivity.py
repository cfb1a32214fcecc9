from __future__ import annotations

from itertools import product

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from minitrain.errors import InputError
from minitrain.quantization.formats.names import named
from minitrain.quantization.model import layer_names, quantize_model
from minitrain.quantization.sensitivity import Cost, deal_bits, sensitivities
from minitrain.training.loop import evaluate

from .toys import calibration, held_out, trained

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


def test_bits_dealt_out_beat_the_same_bytes_everywhere():
    names = ("int2-g32", "int3-row", "int3-g32", "int4-row", "int4-g32", "int8-row")
    costs = sensitivities(trained(), [named(name) for name in names], calibration()[:2])
    same = {name: named("int3-g32") for name in costs}
    budget = sum(costs[name][form].nbytes for name, form in same.items())
    dealt = deal_bits(costs, budget)
    assert sum(costs[name][form].nbytes for name, form in dealt.items()) <= budget
    losses = [evaluate(quantize_model(trained(), formats), held_out()) for formats in (same, dealt)]
    assert losses[1] < losses[0] - 0.02
    bits = [sum(dealt[f"blocks.{i}.{n}"].grid.bits for n in ("mlp.up", "mlp.gate")) for i in (0, 1)]
    assert bits[0] > bits[1], "the first block's errors pass through both"


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
