from __future__ import annotations

import pytest
import torch
from torch import nn

from minitrain.errors import InputError
from minitrain.quantization.formats.names import named
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
from minitrain.quantization.model import quantize_model

from .toys import fresh, tokens

FORMATS = ["int8", "int4-g32", "int4-g64", "int4-g128", "int4f-g64", "int4z-g32", "int4z-g256"]


def quantized(name, rows=48, columns=256, bias=True):
    torch.manual_seed(0)
    linear = nn.Linear(columns, rows, bias=bias)
    linear.weight.data += 0.02  # so that a zero point is not in the middle
    return QuantLinear(named(name).quantize(linear.weight), linear.bias)


@pytest.mark.parametrize("name", FORMATS)
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


@pytest.mark.parametrize("name", FORMATS)
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


@pytest.mark.parametrize(
    ("name", "rows", "columns"),
    [
        ("int8", 48, 40),  # torch's kernel would give NaN, or read memory that is not there
        ("int8-tensor", 48, 256),
        ("int8z", 48, 256),
        ("int4-row", 48, 256),
        ("int4-g48", 48, 288),
        ("int4-g64", 48, 96),
        ("int4-g64-dq", 48, 256),
        ("int4-g64", 40, 256),
        ("nf4", 48, 256),
        ("mxfp4", 48, 256),
        ("int3", 48, 256),
    ],
)
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
