"""W8A8 beside bitsandbytes' primitives, and what outliers do to it."""

from __future__ import annotations

import math

import pytest
import torch

from minitrain.errors import InputError
from minitrain.quantization.formats.names import named
from minitrain.quantization.layers.int8 import Int8Linear, int_matmul, quantize_tokens
from minitrain.quantization.methods.method import METHODS
from minitrain.quantization.methods.rotation import rotate
from minitrain.quantization.methods.scales import plant_outliers
from minitrain.quantization.model import quantize_model
from minitrain.training.loop import evaluate

from .toys import calibration, held_out, trained


def operands(outlier=1.0):
    generator = torch.Generator().manual_seed(0)
    x, weight = torch.randn(16, 64, generator=generator), torch.randn(32, 64, generator=generator)
    x[:, 5] *= outlier
    return x, weight


def relative_error(layer, x, weight):
    return ((layer(x) - x @ weight.t()).norm() / (x @ weight.t()).norm()).item()


def test_integers_are_added_exactly():
    a, b = (torch.randint(-127, 128, (40, 4096)).to(torch.int8) for _ in range(2))
    expected = a.long() @ b.long().t()
    assert torch.equal(int_matmul(a, b).long(), expected)
    assert (
        not torch.equal((a.float() @ b.float().t()).long(), expected)
        or expected.abs().max() < 2**24
    )


def test_llm_int8_beside_bitsandbytes():
    peer = pytest.importorskip("bitsandbytes.functional", reason="bitsandbytes is not installed")
    x, weight = operands(outlier=30.0)
    held = named("int8-row").quantize(weight)
    theirs, scales, _ = peer.int8_vectorwise_quant(weight)
    assert torch.equal((held.tensors["codes"].int() - 128).view(32, 64), theirs.int())
    torch.testing.assert_close(held.tensors["scale"], scales / 127)
    q_x, s_x, columns = peer.int8_vectorwise_quant(x.half(), threshold=6.0)
    x = x.half().float()
    outlier = (x.abs() >= 6).any(dim=0)
    assert torch.equal(columns.long().flatten(), outlier.nonzero().flatten())
    regular, ours = quantize_tokens(x.masked_fill(outlier, 0))
    torch.testing.assert_close(ours.flatten(), s_x.flatten() / 127, rtol=1e-3, atol=0)
    assert (regular.int() - q_x.masked_fill(outlier, 0).int()).abs().max() <= 1


def test_an_outlier_channel_hurts_and_the_decomposition_heals():
    x, weight = operands(outlier=30.0)
    held = named("int8-row").quantize(weight)
    plain = relative_error(Int8Linear(held), x, weight)
    split = relative_error(Int8Linear(held, threshold=6.0), x, weight)
    assert split < 0.5 * plain
    quiet, _ = operands()
    assert relative_error(Int8Linear(held), quiet, weight) < 0.02
    everything = Int8Linear(
        held, threshold=1e-9
    )  # all columns in floating point: weights alone err
    torch.testing.assert_close(everything(x), x @ held.dequantize().t(), rtol=1e-4, atol=1e-4)


def test_a_fixed_scale_clamps_what_calibration_did_not_see():
    x, weight = operands()
    held = named("int8-row").quantize(weight)
    layer = Int8Linear(held, input_scale=x.abs().max() / 127)
    assert relative_error(layer, x, weight) < 0.03
    assert relative_error(layer, 10 * x, weight) > 0.3
    scale = layer.state_dict()["input_scale"]
    assert torch.equal(layer.bfloat16().input_scale, scale), "a scale keeps its bits"


def test_dtypes_gradients_and_shapes():
    x, weight = operands()
    layer = Int8Linear(named("int8-row").quantize(weight), torch.ones(32))
    x = x.view(4, 4, 64).bfloat16().requires_grad_()
    y = layer(x)
    assert y.dtype == torch.bfloat16 and y.shape == (4, 4, 32)
    y.sum().backward()
    expected = layer.weight.dequantize().sum(dim=0)
    torch.testing.assert_close(x.grad[0, 0].float(), expected, rtol=0.02, atol=0.05)
    with pytest.raises(InputError, match="int8-row"):
        Int8Linear(named("int4").quantize(weight))


def test_w8a8_of_a_model_with_planted_outliers():
    """In shape: Dettmers et al., figure 1; SmoothQuant, table 1. Perplexities."""
    form, table = named("int8-row"), {}
    for factor in (1, 100):
        model = plant_outliers(trained(), factor)
        table["float", factor] = math.exp(evaluate(model, held_out()))
        for name in ("per-tensor", "per-token", "llm-int8", "smoothquant"):
            model = plant_outliers(trained(), factor)
            quantize_model(model, form, METHODS[name], calibration())
            table[name, factor] = math.exp(evaluate(model, held_out()))
    clean = table["float", 1]
    assert table["float", 100] == pytest.approx(clean, rel=1e-4)
    assert all(table[name, 1] < 1.01 * clean for name, factor in table if factor == 1)
    assert table["per-tensor", 100] > 1.5 * clean
    assert 1.01 * clean < table["per-token", 100] < table["per-tensor", 100]
    assert table["llm-int8", 100] < 1.1 * clean  # what stays under 6 still shares a scale
    assert table["smoothquant", 100] < 1.01 * clean
    rotated = rotate(plant_outliers(trained(), 100))
    quantize_model(rotated, form, METHODS["per-tensor"], calibration())
    assert math.exp(evaluate(rotated, held_out())) < 1.01 * clean
