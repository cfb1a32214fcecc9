"""Lab e08's plain versions are the package's own, written shorter."""

from __future__ import annotations

from copy import deepcopy

import pytest
import torch
from torch import nn

from minitrain.quantization import plain
from minitrain.quantization.calibration import InputStatistics
from minitrain.quantization.formats.names import named
from minitrain.quantization.layers.int8 import int_matmul, llm_int8
from minitrain.quantization.methods import gptq, scales
from minitrain.quantization.methods.scales import Junction, smoothquant

ROWS, WIDTH = 12, 40


def weight(seed=0):
    return torch.randn(ROWS, WIDTH, generator=torch.Generator().manual_seed(seed))


def inputs(tokens=300):
    generator = torch.Generator().manual_seed(1)
    mix = torch.randn(WIDTH, WIDTH, generator=generator) / WIDTH**0.5
    sizes = torch.logspace(-1, 1, WIDTH)
    return torch.randn(tokens, WIDTH, generator=generator) @ mix * sizes


def seen(x):
    statistics = InputStatistics(WIDTH)
    statistics.add(x)
    return statistics


@pytest.mark.parametrize("bits", [2, 3, 4, 8])
@pytest.mark.parametrize("group", [8, 16, 40])
def test_integers_are_those_of_the_formats(bits: int, group: int):
    w = weight()
    w[3, :group] = 0
    held = named(f"int{bits}-g{group}").quantize(w)
    codes, scale = plain.quantize_absmax(w, bits, group)
    assert torch.equal(scale.flatten(), held.tensors["scale"])
    assert torch.equal(plain.dequantize(codes, scale, group), held.dequantize())
    held = named(f"int{bits}z-g{group}").quantize(w)
    codes, scale, zero = plain.quantize_zero_point(w, bits, group)
    assert torch.allclose(plain.dequantize(codes, scale, group, zero), held.dequantize(), atol=1e-6)


@pytest.mark.parametrize("threshold", [6.0, float("inf")])
def test_llm_int8_is_the_layers(threshold: float):
    held, x = named("int8-row").quantize(weight()), inputs(20)
    codes, scale = plain.quantize_absmax(weight(), 8, WIDTH)
    y = plain.llm_int8(x, codes, scale, int_matmul, threshold)
    assert torch.allclose(y, llm_int8(threshold)(held, None, None)(x), atol=1e-4)


@pytest.mark.parametrize(("bits", "group", "block"), [(4, 40, 16), (3, 16, 128), (4, 16, 5)])
def test_gptq_is_the_packages(bits: int, group: int, block: int):
    h = seen(inputs()).second_moment
    h[7], h[:, 7] = 0, 0
    held = gptq.gptq(weight(), h, named(f"int{bits}-g{group}"), block=block)
    codes, scale = plain.gptq(weight(), h, bits, group, block=block)
    assert torch.allclose(plain.dequantize(codes, scale, group), held.dequantize(), atol=1e-5)


def test_awq_finds_the_packages_ratio():
    statistics, linear = seen(inputs()), nn.Linear(WIDTH, ROWS, bias=False)
    linear.weight = nn.Parameter(weight())
    junction = Junction(nn.RMSNorm(WIDTH), {"it": linear})
    ratio, errors = scales.best_ratio(junction, statistics, {"it": named("int4-g8")})
    h = statistics.second_moment.float()
    s, own = plain.awq(weight(), statistics.mean_abs, h, 4, 8)
    assert torch.allclose(s, scales.scale_of(statistics.mean_abs, ratio))
    assert own == pytest.approx(errors, rel=1e-3)


def test_smoothing_is_the_packages(monkeypatch):
    block = nn.Module()
    block.norm = nn.RMSNorm(WIDTH)
    block.linear = nn.Linear(WIDTH, ROWS, bias=False)
    other = deepcopy(block)
    statistics = seen(inputs())
    plain.smooth(block.norm, [block.linear], statistics.max_abs, 0.7)
    found = Junction(other.norm, {"it": other.linear})
    monkeypatch.setattr("minitrain.quantization.methods.scales.junctions", lambda _: [found])
    smoothquant(0.7)(other, {"it": statistics}, {})
    for ours, theirs in zip(block.parameters(), other.parameters()):
        assert torch.allclose(ours, theirs, rtol=1e-6)


@pytest.mark.parametrize("bits", [2, 4, 8])
def test_fake_quantization_is_torchs(bits: int):
    m = 2 ** (bits - 1) - 1
    w, scale = weight().requires_grad_(), torch.full((ROWS, 1), 0.25 / m)
    twin = weight().requires_grad_()
    out = plain.fake_quantize(w, scale, bits)
    zero = torch.zeros(ROWS, dtype=torch.int32)
    theirs = torch.fake_quantize_per_channel_affine(twin, scale[:, 0], zero, 0, -m, m)
    assert torch.allclose(out, theirs, atol=1e-7)
    d_out = weight(2)
    out.backward(d_out)
    theirs.backward(d_out)
    assert torch.equal(w.grad, twin.grad) and 0 < (w.grad == 0).sum() < w.numel()
