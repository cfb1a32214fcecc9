from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from minitrain.errors import InputError
from minitrain.quantization.formats.names import named
from minitrain.quantization.layers.int8 import Int8Linear, int_matmul, quantize_tokens
from minitrain.quantization.layers.linear import QuantLinear
from minitrain.quantization.methods.method import METHODS
from minitrain.quantization.methods.rotation import rotate
from minitrain.quantization.methods.scales import plant_outliers
from minitrain.quantization.model import quantize_model
from minitrain.training.loop import evaluate

from .toys import calibration, held_out, trained

FORMATS = ["int8", "int4-g32", "int3z", "nf4-dq", "fp8", "mxfp4"]


def layer(name="nf4", bias=True) -> tuple[nn.Linear, QuantLinear]:
    torch.manual_seed(0)
    linear = nn.Linear(64, 24, bias=bias)
    return linear, QuantLinear(named(name).quantize(linear.weight), linear.bias)


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_it_multiplies_by_the_dequantized_weight_in_the_inputs_dtype(name, dtype):
    linear, quant = layer(name)
    assert (quant.in_features, quant.out_features) == (64, 24)
    x = torch.randn(2, 5, 64, dtype=dtype, requires_grad=True)
    y = quant(x)
    weight = quant.weight.dequantize().to(dtype)
    expected = nn.functional.linear(x, weight, linear.bias.to(dtype))
    assert y.dtype == dtype and y.shape == (2, 5, 24)
    loose = {"rtol": 0.02, "atol": 0.02} if dtype == torch.bfloat16 else {}
    torch.testing.assert_close(y, expected, **loose)
    dy = torch.randn_like(y)
    torch.testing.assert_close(torch.autograd.grad(y, x, dy)[0], dy @ weight, **loose)
    assert not torch.allclose(y, linear.to(dtype)(x)), "or nothing was quantized"


def test_the_gradient_is_right_to_float64():
    _, quant = layer(bias=False)
    x = torch.randn(3, 64, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(quant, (x,))


def test_only_the_bias_can_learn_and_backward_keeps_no_weight():
    _, quant = layer()
    assert [name for name, _ in quant.named_parameters()] == ["bias"]
    x = torch.randn(3, 64, requires_grad=True)
    saved = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: saved.append(t) or t, lambda t: t):
        y = quant(x)
    y.sum().backward()
    assert not saved and quant.bias.grad.eq(3).all()


def test_under_autocast_it_computes_in_autocasts_dtype():
    linear, quant = layer()
    with torch.autocast("cpu", torch.bfloat16):
        assert quant(torch.randn(2, 64)).dtype == linear(torch.randn(2, 64)).dtype == torch.bfloat16


@pytest.mark.parametrize("name", FORMATS)
def test_a_change_of_dtype_leaves_codes_and_scales_alone(name):
    _, quant = layer(name)
    before = quant.weight.dequantize()
    quant.bfloat16()
    assert torch.equal(quant.weight.dequantize(), before) and quant.bias.dtype == torch.bfloat16
    assert quant(torch.randn(2, 64, dtype=torch.bfloat16)).dtype == torch.bfloat16


@pytest.mark.parametrize("name", FORMATS)
def test_its_state_is_its_bytes(name):
    _, quant = layer(name, bias=False)
    state = quant.state_dict()
    assert sum(t.nbytes for t in state.values()) == quant.weight.nbytes
    torch.manual_seed(1)
    other = QuantLinear(named(name).quantize(torch.randn(24, 64)))
    other.load_state_dict(state)
    assert torch.equal(other.weight.dequantize(), quant.weight.dequantize())


def test_whole_numbers_are_refused():
    with pytest.raises(InputError, match="give floats"):
        layer()[1](torch.ones(2, 64, dtype=torch.long))


def test_its_gradient_may_be_differentiated_again():
    """As where a penalty on gradients is trained: dx is linear in dy, with the same Ŵ."""
    layer = QuantLinear(named("nf4").quantize(torch.randn(6, 8)))
    x = torch.randn(3, 8, requires_grad=True)
    (dx,) = torch.autograd.grad(layer(x).square().sum(), x, create_graph=True)
    (twice,) = torch.autograd.grad(dx.sum(), x)
    weight = layer.weight.dequantize()
    torch.testing.assert_close(twice, 2 * (torch.ones(3, 8) @ weight.T) @ weight)


def test_codes_of_another_format_are_not_loaded(tmp_path):
    weight = torch.randn(24, 64)
    four, other = (
        torch.nn.Sequential(QuantLinear(named(name).quantize(weight)))
        for name in ("int4-g64", "nf4-g64")
    )
    torch.save(four.state_dict(), tmp_path / "state.pt")
    for state in (four.state_dict(), torch.load(tmp_path / "state.pt")):
        with pytest.raises(InputError, match=r"of 0 is of .*int4-g64.*nf4-g64"):
            other.load_state_dict(state)
        four.load_state_dict(state)


# ---- W8A8: beside bitsandbytes, and what outliers do to it ----


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
