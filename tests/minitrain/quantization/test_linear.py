from __future__ import annotations

import pytest
import torch
from torch import nn

from minitrain.errors import InputError
from minitrain.quantization.formats.names import named
from minitrain.quantization.layers.linear import QuantLinear

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


def test_its_name_says_what_it_is():
    assert "nf4-b64, 4.5 bits a weight" in repr(layer()[1])


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
