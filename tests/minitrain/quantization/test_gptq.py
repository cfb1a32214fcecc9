from __future__ import annotations

import pytest
import torch

from minitrain.errors import InputError
from minitrain.quantization.calibration import InputStatistics
from minitrain.quantization.formats.names import named
from minitrain.quantization.formats.weight import GridFormat, best_clipped
from minitrain.quantization.methods.gptq import gptq

FORMATS = [
    "int4-row",
    "int3z-g32",
    "int3-tensor",
    "nf4-b32",
    "int4-g32-dq",
    "int4-g48",
    "int4-g32-mse",
]


def weight_and_inputs(rows=24, columns=96, tokens=600):
    generator = torch.Generator().manual_seed(0)
    mix = torch.randn(columns, columns, generator=generator) / columns**0.5
    x = torch.randn(tokens, columns, generator=generator) @ mix  # columns that know of one another
    return torch.randn(rows, columns, generator=generator), x


def seen(x):
    statistics = InputStatistics(x.shape[1])
    for part in x.split(100):
        statistics.add(part)
    return statistics


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("block", [1, 128])
def test_an_identity_hessian_is_round_to_nearest_bit_for_bit(name, block):
    weight, _ = weight_and_inputs()
    nearest = named(name).quantize(weight).tensors
    for act_order in (False, True):
        found = gptq(weight, 3 * torch.eye(96), named(name), block, act_order=act_order).tensors
        assert found.keys() == nearest.keys()
        assert all(torch.equal(found[key], nearest[key]) for key in nearest)


@pytest.mark.parametrize("name", FORMATS)
def test_the_size_of_the_block_does_not_matter(name):
    weight, x = weight_and_inputs()
    moment = seen(x).second_moment
    found = [gptq(weight, moment, named(name), block).dequantize() for block in (1, 32, 128, 7)]
    for other in found[1:]:
        torch.testing.assert_close(other, found[0], rtol=0, atol=1e-5)


def by_the_book(weight, moment, form, damping=0.01):
    """Without Cholesky factors or blocks: after each column H^-1 is updated, and all the rest
    moves (Frantar et al., algorithm 1's mathematics, equations 2 and 3)."""
    h = moment.double() + damping * moment.diagonal().mean() * torch.eye(len(moment))
    inverse, work = torch.linalg.inv(h), weight.double().clone()
    params = form.grid.fit(form.tiling.cut(weight))
    for j in range(len(h)):
        column = work[:, j : j + 1].float()
        rounded = form.grid.decode(form.grid.encode(column, params), params)
        error = (work[:, j : j + 1] - rounded) / inverse[j, j]
        work[:, j + 1 :] -= error * inverse[j, j + 1 :]
        work[:, j : j + 1] = rounded
        inverse = inverse - torch.outer(inverse[:, j], inverse[j]) / inverse[j, j]
    return work.float()


@pytest.mark.parametrize("name", ["int4-row", "int3z-row", "nf4-row"])
def test_it_is_optimal_brain_surgery_column_by_column(name):
    weight, x = weight_and_inputs()
    moment = seen(x).second_moment
    found = gptq(weight, moment, named(name)).dequantize()
    torch.testing.assert_close(found, by_the_book(weight, moment, named(name)), rtol=0, atol=1e-5)


@pytest.mark.parametrize("name", FORMATS)
def test_outputs_come_closer_though_weights_go_further(name):
    weight, x = weight_and_inputs()
    statistics = seen(x)
    nearest = named(name).quantize(weight).dequantize()
    found = gptq(weight, statistics.second_moment, named(name)).dequantize()
    outputs = [(x @ (w - weight).t()).square().sum(dim=1).mean() for w in (nearest, found)]
    assert outputs[1] < 0.8 * outputs[0]
    assert (found - weight).norm() > (nearest - weight).norm()
    assert statistics.output_error(found - weight) == pytest.approx(outputs[1].item(), rel=1e-4)


@pytest.mark.parametrize("name", ["int4f-row-mse", "int3f-g32-mse"])
@pytest.mark.parametrize("act_order", [False, True])
def test_a_clipped_range_is_that_of_the_columns_that_matter(name, act_order, monkeypatch):
    """A column's error costs 1/U_jj² of the outputs, once all later ones have made up for it."""
    weight, x = weight_and_inputs()
    weight[:, ::8] *= 4  # large where little is read, so that to clip them costs little
    x = x / torch.ones(96).index_fill(0, torch.arange(0, 96, 8), 20.0)
    statistics, form = seen(x), named(name)
    seen_errors = []
    for blind in (False, True):
        if blind:
            blinded = lambda form, tiles, cost: best_clipped(form.grid, tiles)  # noqa: E731
            monkeypatch.setattr(GridFormat, "fit", blinded)
        held = gptq(weight, statistics.second_moment, form, act_order=act_order)
        seen_errors.append(statistics.output_error(held.dequantize() - weight))
    assert seen_errors[0] < 0.8 * seen_errors[1]


def test_act_order_takes_the_columns_of_large_inputs_first():
    weight, x = weight_and_inputs()
    x = x * torch.logspace(1, -1, 96).flip(0)  # the largest come last by themselves
    statistics = seen(x)
    moment, form = statistics.second_moment, named("int3-row")
    held = [gptq(weight, moment, form, act_order=order) for order in (False, True)]
    errors = [statistics.output_error(each.dequantize() - weight) for each in held]
    assert errors[1] < 0.8 * errors[0]


def test_a_dead_column_is_rounded_to_nearest_and_harms_nobody():
    weight, x = weight_and_inputs()
    x[:, [0, 50]] = 0
    form = named("int4-row")
    found = gptq(weight, seen(x).second_moment, form).dequantize()
    assert found.isfinite().all()
    nearest = form.quantize(weight).dequantize()
    assert torch.equal(found[:, [0, 50]], nearest[:, [0, 50]])
    assert torch.equal(gptq(weight, torch.zeros(96, 96), form).dequantize(), nearest)


def test_fewer_tokens_than_columns_need_the_damping():
    weight, x = weight_and_inputs(tokens=20)
    moment = seen(x).second_moment
    assert gptq(weight, moment, named("int4-row")).dequantize().isfinite().all()
    with pytest.raises(InputError, match="more tokens"):
        gptq(weight, moment, named("int4-row"), damping=0.0)
    heavy = gptq(weight, moment, named("int4-row"), damping=1e6).dequantize()
    assert torch.equal(heavy, named("int4-row").quantize(weight).dequantize())


def test_what_cannot_be_is_refused():
    for name, moment, options, answer in (
        ("mxfp4", torch.eye(96), {}, "column by column to fixed levels"),
        ("nf4-b64", torch.eye(96), {}, "straddle rows of 96"),
        ("int4", torch.eye(95), {}, r"must be \(96, 96\)"),
        ("int4", torch.eye(96), {"block": 0}, "try block=128"),
        ("int4-g32", torch.eye(96) / 0.0, {}, "NaN or infinite numbers: .* overflows"),
    ):
        with pytest.raises(InputError, match=answer):
            gptq(weight_and_inputs()[0], moment, named(name), **options)
