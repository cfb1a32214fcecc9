"""What moves scales and rotations about must leave the model's function, and AWQ its bits."""

from __future__ import annotations

import math

import pytest
import torch

from minitrain.errors import InputError
from minitrain.model.config import preset
from minitrain.model.transformer import build
from minitrain.quantization.calibration import Calibration, InputStatistics
from minitrain.quantization.formats.names import named
from minitrain.quantization.methods.method import METHODS
from minitrain.quantization.methods.rotation import random_rotation, rotate
from minitrain.quantization.methods.scales import (
    awq,
    best_ratio,
    junctions,
    plant_outliers,
    smoothquant,
)
from minitrain.quantization.model import layer_names, quantize_model
from minitrain.training.loop import evaluate

from .toys import calibration, fresh, held_out, tokens, trained

SHAPES = [{"kv_heads": 2}, {"qkv_bias": True, "tied": True}, {"hidden_size": 96, "ffn_size": 80}]


def statistics_of(model):
    """Of the first block, by layer."""
    block = model.blocks[0]
    layers = {n: m for n, m in block.named_modules() if isinstance(m, torch.nn.Linear)}
    return Calibration(model, calibration()).statistics(block, layers)


@pytest.mark.parametrize("changes", SHAPES)
def test_a_scale_may_move_through_every_junction(changes):
    model = fresh(**changes).double()
    before = model(tokens())
    grouped = model.config.kv_heads < model.config.heads
    assert len(list(junctions(model.blocks[0]))) == (3 if grouped else 4)
    for block in model.blocks:
        for junction in junctions(block):
            channels = next(iter(junction.consumers.values())).in_features
            old = [linear.weight.clone() for linear in junction.consumers.values()]
            junction.rescale(torch.rand(channels).double() + 0.1)
            pairs = zip(old, junction.consumers.values())
            assert all(not torch.equal(a, b.weight) for a, b in pairs)
    torch.testing.assert_close(model(tokens()), before, rtol=0, atol=1e-10)


@pytest.mark.parametrize("changes", SHAPES)
def test_rotation_leaves_the_function(changes):
    model = fresh(**changes).double()
    before, width = model(tokens()), model.config.hidden_size
    old = model.blocks[0].mlp.up.weight.clone()
    rotate(model)
    torch.testing.assert_close(model(tokens()), before, rtol=0, atol=1e-10)
    assert not torch.allclose(model.blocks[0].mlp.up.weight, old)
    assert all((norm.weight == 1).all() for norm in (model.norm, model.blocks[1].mlp_norm))
    assert not model.config.tied and model.head.weight is not model.embed.weight
    assert model.head.weight.shape == (64, width)
    assert rotate(fresh(**changes).to("meta")).head.weight.is_meta, "the model stays on its device"


@pytest.mark.parametrize("size", [1, 3, 64, 96, 100])
def test_a_rotation_is_orthogonal_and_hadamards_where_it_can_be(size):
    q = random_rotation(size, torch.Generator().manual_seed(0))
    torch.testing.assert_close(q @ q.t(), torch.eye(size).double())
    if size in (1, 8, 64):
        torch.testing.assert_close(q.abs(), torch.full_like(q, size**-0.5))
    elif size == 96:
        assert q.abs().max() < 0.2, "an outlier is spread over 32 channels at least"


def test_planted_outliers_leave_the_function_and_stand_out():
    model, factor = fresh().double(), 10.0
    before, quiet = model(tokens()), model.blocks[1].mlp_norm(torch.ones(1, 48).double())
    plant_outliers(model, factor)
    torch.testing.assert_close(model(tokens()), before, rtol=0, atol=1e-10)
    loud = model.blocks[1].mlp_norm(torch.ones(1, 48).double())
    grown = (loud / quiet).round().flatten().tolist()
    assert grown.count(factor) == 4 and grown.count(1.0) == 44
    with pytest.raises(InputError, match="1 to 48 channels"):
        plant_outliers(model, 2.0, channels=49)


@pytest.mark.parametrize("alpha", [0.0, 0.5, 1.0])
def test_smoothing_leaves_the_function_and_moves_the_size_by_alpha(alpha):
    model = trained().double()
    batch = calibration()[0]
    before = model(batch.tokens)
    seen = statistics_of(model)
    smoothquant(alpha)(model.blocks[0], seen, {})
    torch.testing.assert_close(model(batch.tokens), before, rtol=0, atol=1e-10)
    after = statistics_of(model)["mlp.gate"].max_abs
    columns = torch.stack([model.blocks[0].mlp.gate.weight, model.blocks[0].mlp.up.weight])
    columns = columns.abs().amax(dim=(0, 1)).float()
    if alpha == 1:
        torch.testing.assert_close(after, torch.ones_like(after), rtol=1e-4, atol=0)
    elif alpha == 0:
        torch.testing.assert_close(columns, torch.ones_like(columns), rtol=1e-4, atol=0)
    else:
        torch.testing.assert_close(after, columns, rtol=1e-4, atol=0)  # both carry the same
    with pytest.raises(InputError, match="from 0 to 1"):
        smoothquant(1.5)


def test_awq_takes_the_best_of_its_grid_and_never_loses():
    model = trained().double()
    batch = calibration()[0]
    before, seen = model(batch.tokens), statistics_of(model)
    formats = {name: named("int3-g32") for name in seen}
    junction = next(j for j in junctions(model.blocks[0]) if "mlp.gate" in j.consumers)
    ratio, errors = best_ratio(junction, seen["mlp.gate"], formats)
    assert errors[round(ratio * 20)] == min(errors) <= errors[0] and len(errors) == 20
    form = named("int3-g32")
    nearest = sum(
        seen[name].output_error(form.quantize(linear.weight).dequantize() - linear.weight)
        for name, linear in junction.consumers.items()
    )
    assert errors[0] == nearest, "ratio 0 is round to nearest"
    awq(model.blocks[0], seen, formats)
    torch.testing.assert_close(model(batch.tokens), before, rtol=0, atol=1e-10)


def test_statistics_are_those_of_all_texts_at_once():
    x = torch.randn(90, 8)
    statistics = InputStatistics(8)
    with pytest.raises(InputError, match="no token has passed"):
        statistics.second_moment
    for part in x.split([50, 30, 10]):
        statistics.add(part)
    expected = (x.t() @ x).double() / 90
    torch.testing.assert_close(statistics.second_moment, expected, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(statistics.mean_abs, x.abs().mean(dim=0))
    assert torch.equal(statistics.max_abs, x.abs().amax(dim=0))
    change = torch.randn(5, 8)
    outputs = (x @ change.t()).square().sum(dim=1).mean().item()
    assert statistics.output_error(change) == pytest.approx(outputs, rel=1e-5)
    statistics.add(torch.full((1, 8), math.nan))
    with pytest.raises(InputError, match="inf or nan"):
        statistics.second_moment


def test_what_is_no_float_matrix_any_more_is_refused():
    few = quantize_model(fresh(), {"blocks.1.mlp.up": named("int8")})
    for change in (rotate, lambda model: plant_outliers(model, 10.0)):
        with pytest.raises(InputError, match=r"blocks\.1\.mlp\.up is a QuantLinear"):
            change(few)
        with pytest.raises(InputError, match="mixture of 8 experts"):
            change(build(preset("1M-moe")))


@pytest.mark.parametrize("method", ["awq", "smoothquant"])
def test_layers_that_stay_are_not_rescaled_alone(method):
    model = trained()
    names = [name for name in layer_names(model) if name.endswith(("mlp.up", "attention.o"))]
    gates = [block.mlp.gate.weight.clone() for block in model.blocks]
    form = dict.fromkeys(names, named("int8-row"))
    quantize_model(model, form, METHODS[method], calibration())
    assert all(torch.equal(a, block.mlp.gate.weight) for a, block in zip(gates, model.blocks))
    clean = evaluate(trained(), held_out())
    assert abs(evaluate(model, held_out()) - clean) < 0.01
    quantize_model(model, named("int8-row"), METHODS[method], calibration())
    assert abs(evaluate(model, held_out()) - clean) < 0.01 and not layer_names(model)
