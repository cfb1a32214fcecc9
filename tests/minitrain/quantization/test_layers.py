"""Layers that hold weights in few bits: as they are, in W8A8, and with torch's packed kernels."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from minitrain.errors import InputError
from minitrain.quantization.formats.names import named
from minitrain.quantization.layers.int8 import Int8Linear, int_matmul, quantize_tokens
from minitrain.quantization.layers.linear import QuantLinear
from minitrain.quantization.layers.packed_kernels import (
    BLOCK,
    Int4PackedLinear,
    Int8PackedLinear,
    accelerate,
    kernel_for,
    roofline_seconds,
    tile_of,
)
from minitrain.quantization.methods.method import METHODS
from minitrain.quantization.methods.rotation import rotate
from minitrain.quantization.methods.scales import plant_outliers
from minitrain.quantization.model import quantize_model
from minitrain.training.loop import evaluate

from .toys import calibration, fresh, held_out, tokens, trained

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


def test_only_the_bias_can_learn_and_backward_keeps_no_weight():
    _, quant = layer()
    assert [name for name, _ in quant.named_parameters()] == ["bias"]
    x = torch.randn(3, 64, requires_grad=True)
    saved = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: saved.append(t) or t, lambda t: t):
        y = quant(x)
    y.sum().backward()
    assert not saved and quant.bias.grad.eq(3).all()
    with torch.autocast("cpu", torch.bfloat16):
        assert quant(x).dtype == torch.bfloat16
    with pytest.raises(InputError, match="give floats"):
        quant(torch.ones(2, 64, dtype=torch.long))


@pytest.mark.parametrize("name", FORMATS)
def test_a_change_of_dtype_leaves_codes_and_scales_alone(name):
    _, quant = layer(name)
    before = quant.weight.dequantize()
    quant.bfloat16()
    assert torch.equal(quant.weight.dequantize(), before) and quant.bias.dtype == torch.bfloat16
    assert quant(torch.randn(2, 64, dtype=torch.bfloat16)).dtype == torch.bfloat16


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
    assert torch.equal(int_matmul(a, b).long(), a.long() @ b.long().t())


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
    everything = Int8Linear(held, threshold=1e-9)  # no column is in 8 bits: weights alone err
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


# Packed kernels


PACKED = ["int8", "int4-g32", "int4-g128", "int4f-g64", "int4z-g256"]


def quantized(name, rows=48, columns=256, bias=True):
    torch.manual_seed(0)
    linear = nn.Linear(columns, rows, bias=bias)
    linear.weight.data += 0.02  # so that a zero point is not in the middle
    return QuantLinear(named(name).quantize(linear.weight), linear.bias)


@pytest.mark.parametrize("name", PACKED)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", [(256,), (1, 256), (2, 3, 256)])
def test_a_kernel_multiplies_by_the_same_weight(name, dtype, shape):
    layer = quantized(name)
    fast = kernel_for(layer.weight)(layer)
    x = torch.randn(shape).to(dtype)
    with torch.no_grad():
        y, expected = fast(x), layer(x)
    assert y.dtype == dtype and y.shape == expected.shape
    assert (y - expected).norm() < 0.008 * expected.norm()


@pytest.mark.parametrize("name", PACKED)
@pytest.mark.parametrize("rows", [64, BLOCK + 128])
def test_many_tokens_multiply_by_the_same_weight(name, rows):
    """Blocks of rows, the last smaller; each row apart, so that none may be at another's place."""
    layer = quantized(name, rows, bias=False)
    fast, x = kernel_for(layer.weight)(layer), torch.randn(70, 256).bfloat16()
    with torch.no_grad():
        expected = x.double() @ layer.weight.dequantize().double().t()
        for way in (fast.multiply, fast.multiply_many):
            error = (way(x) - expected).norm(dim=0) / expected.norm(dim=0)
            assert error.max() < 0.008, way


@pytest.mark.parametrize("name", ["int8", "int4-g64"])
def test_few_tokens_take_the_kernel_and_many_the_other_way(name, monkeypatch):
    fast = kernel_for(quantized(name, 64).weight)(quantized(name, 64))
    ways = []
    for way in ("multiply", "multiply_many"):
        monkeypatch.setattr(fast, way, lambda x, w=way: ways.append(w) or x.new_zeros(len(x), 64))
    for supported in (True, False):
        monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda s=supported: s)
        for count in (1, fast.few, fast.few + 1):
            assert fast(torch.randn(count, 256)).shape == (count, 64)
    assert [w == "multiply_many" for w in ways] == [False, False, True, False, False, False]


def test_a_layout_that_is_not_known_keeps_the_kernel():
    fast = kernel_for(quantized("int4-g64", 48).weight)(quantized("int4-g64", 48))
    assert fast.tile is None and not fast.unpacks, "48 rows are no whole tiles"
    codes = torch.randint(16, (64, 32), dtype=torch.uint8)
    packed = torch.ops.aten._convert_weight_to_int4pack_for_cpu(codes.int(), 1)
    assert tile_of(codes, packed) is not None
    assert tile_of(codes, packed.flip(0)) is None and tile_of(codes.flip(1), packed) is None


NO_KERNEL = [
    ("int8", 48, 40),  # torch's kernel would give NaN, or read memory that is not there
    ("int4-g48", 48, 288),
    ("int4-g64", 48, 96),
    ("int4-g64", 40, 256),
    *((name, 48, 256) for name in ("int8-tensor", "int8z", "int4-row", "int4-g64-dq", "nf4")),
]


@pytest.mark.parametrize(("name", "rows", "columns"), NO_KERNEL)
def test_what_torch_has_no_kernel_for_is_left(name, rows, columns):
    assert kernel_for(quantized(name, rows, columns).weight) is None
    with pytest.raises(InputError, match=f"{named(name).name}.*quantize to"):
        accelerate(nn.Sequential(quantized(name, rows, columns)))


def test_a_model_is_accelerated_where_it_can_be():
    model = quantize_model(fresh(hidden_size=64, ffn_size=96), named("int4-g32"))
    expected = model(tokens())
    accelerate(model)
    assert isinstance(model.blocks[1].mlp.down, Int4PackedLinear)
    with torch.no_grad():
        assert (model(tokens()) - expected).norm() < 0.02 * expected.norm()
    eight = accelerate(quantize_model(fresh(qkv_bias=True), named("int8")))
    assert isinstance(eight.blocks[0].attention.q, Int8PackedLinear)
    with pytest.raises(InputError, match="no layer has a format"):
        accelerate(eight)


def test_a_lost_gradient_is_an_error():
    layer = quantized("int8")
    fast = kernel_for(layer.weight)(layer)
    x = torch.randn(1, 256, requires_grad=True)
    with pytest.raises(InputError, match="no gradient"):
        fast(x)
    with torch.no_grad():
        fast(x)


def test_the_roofline_has_two_sides():
    few, many = (roofline_seconds(1e6, 10**6, tokens, 1e9, 1e12) for tokens in (1, 10**4))
    assert few == 1e-3 and many == 2e-2
    assert roofline_seconds(5e5, 10**6, 1, 1e9, 1e12) == few / 2, "half the bytes, half the time"
    assert roofline_seconds(5e5, 10**6, 10**4, 1e9, 1e12) == many, "and no gain here"
