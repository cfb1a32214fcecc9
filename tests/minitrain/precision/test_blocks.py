"""Formats as OCP tabulates them and torch rounds to them; blocks of them under a scale each."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from minitrain.precision.blocks import (
    Scaling,
    e8m0_scale,
    fake_quantize,
    float32_scale,
    nvfp4_scale,
    power_of_two_up,
    quantize,
    tile_amax,
    widen,
)
from minitrain.precision.formats import (
    E2M1,
    E4M3,
    E5M2,
    cast,
    from_codes,
    pack,
    round_to,
    to_codes,
    unpack,
)

LINES = Scaling(E4M3, (1, 128), power_of_two_up)
SQUARES = Scaling(E4M3, (128, 128), power_of_two_up)
MXFP8 = Scaling(E4M3, (1, 32), e8m0_scale)
MXFP4 = Scaling(E2M1, (1, 32), e8m0_scale)
NVFP4 = Scaling(E2M1, (1, 16), nvfp4_scale)
WHOLE = Scaling(E4M3, None, float32_scale)
ALL = {"lines": LINES, "squares": SQUARES, "MXFP8": MXFP8, "MXFP4": MXFP4, "NVFP4": NVFP4, "whole": WHOLE}  # fmt: skip

# OCP MX 1.0, table 7 and section 5.4.1: code -> scale.
E8M0_TABLE = {0: 2.0**-127, 1: 2.0**-126, 127: 1.0, 128: 2.0, 254: 2.0**127, 255: math.nan}


def matrix(rows=6, columns=300, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(rows, columns, generator=generator)


def test_e8m0_is_ocps_table():
    codes = torch.tensor(list(E8M0_TABLE), dtype=torch.uint8)
    expected = torch.tensor(list(E8M0_TABLE.values()))
    assert torch.equal(widen(codes).nan_to_num(nan=-1), expected.nan_to_num(nan=-1))
    finite = widen(torch.arange(255, dtype=torch.uint8))
    assert torch.equal(finite.log2(), torch.arange(255) - 127.0)


def by_the_book(block: list[float], table: list[float], emax: int) -> list[float]:
    """OCP MX 1.0, section 6.3, one block: X = 2^(floor(log2 max|v|) - emax); P_i = v_i / X."""
    scale = 2.0 ** (math.floor(math.log2(max(map(abs, block)))) - emax)
    nearest = lambda v: min(table, key=lambda level: (abs(level - v), table.index(level) % 2))  # noqa: E731
    return [math.copysign(nearest(abs(v) / scale), v) * scale for v in block]


E4M3_TABLE = torch.arange(127, dtype=torch.uint8).view(torch.float8_e4m3fn).float().tolist()


@pytest.mark.parametrize(
    ("scaling", "table", "emax"),
    [(MXFP4, [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0], 2), (MXFP8, E4M3_TABLE, 8)],
    ids=["MXFP4", "MXFP8"],
)
def test_mx_blocks_are_the_specifications(scaling, table, emax):
    x = matrix(3, 64) * torch.tensor([[1e-3], [1.0], [3e4]])
    found = quantize(x, scaling).dequantize()
    for row, expected in zip(x, found):
        for start in (0, 32):
            block = row[start : start + 32].tolist()
            assert by_the_book(block, table, emax) == expected[start : start + 32].tolist()


def test_nvfp4_scales_are_e4m3_under_one_float32():
    x = matrix(4, 64) * torch.tensor([[1.0], [1e-2], [30.0], [1.0]])
    held = quantize(x, NVFP4)
    assert held.scale.dtype == torch.float8_e4m3fn and held.scale.shape == (4, 4)
    assert held.scale.float().max() == 448
    outer = x.abs().max() / (6 * 448)
    torch.testing.assert_close(held.outer, outer)
    scales = round_to(tile_amax(x, (1, 16)) / 6 / outer, E4M3).repeat_interleave(16, dim=1) * outer
    assert torch.equal(held.dequantize(), round_to(x / scales, E2M1) * scales)


def test_deepseeks_scale_is_the_smallest_power_of_two_that_clamps_nothing():
    amax = torch.cat([torch.logspace(-20, 20, 999), 448 * 2.0 ** torch.arange(-9, 9)]).unsqueeze(0)
    scale = widen(power_of_two_up(amax, E4M3)[0])
    assert torch.equal(scale.log2(), scale.log2().round())
    assert (amax / scale <= 448).all() and (amax / (scale / 2) > 448).all()
    too_small = widen(e8m0_scale(amax, E4M3)[0])  # rounded down, as MX does, clamps some
    assert (amax / too_small > 448).any()


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("value", [0.0, 1e-45, 1e-30, 3e38])
def test_no_size_of_numbers_gives_an_infinite_scale(name, value):
    x = torch.zeros(4, 32)
    x[1, 3] = value
    held = quantize(x, ALL[name])
    assert held.scales().isfinite().all() and held.dequantize().isfinite().all()
    if value >= 1e-30:  # what is far under a normal float32 may go to 0
        assert held.dequantize()[1, 3] == pytest.approx(value, rel=0.3)


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("poison", [math.nan, math.inf])
def test_what_is_not_finite_stays_visible(name, poison):
    x = matrix(2, 32)
    x[0, 0] = poison
    assert not quantize(x, ALL[name]).dequantize()[0, 0].isfinite()


@pytest.mark.parametrize("tile", [None, (1, 32), (4, 7)])
@pytest.mark.parametrize("form", [E4M3, E5M2, E2M1], ids=lambda form: form.name)
def test_the_naive_one_leaves_what_the_packed_one_holds(form, tile):
    x = matrix(5, 70)
    x[0, :32] = 0.0
    held = quantize(x, Scaling(form, tile, float32_scale)).dequantize()
    assert torch.equal(fake_quantize(x, form, tile), held)
    amax = tile_amax(x, tile) / 4  # of a smaller past: what has grown is clamped
    delayed = quantize(x, Scaling(form, tile, float32_scale), amax).dequantize()
    assert torch.equal(fake_quantize(x, form, tile, amax), delayed)


# ---- an outlier ----


def errors(x, scaling):
    return (quantize(x, scaling).dequantize() - x).abs()


# ---- any shape ----

BOUNDS = {"lines": 2**-4, "squares": 2**-4, "MXFP8": 1 / 8, "MXFP4": 1 / 3, "NVFP4": 0.25}


@settings(max_examples=30, deadline=None)
@given(
    name=st.sampled_from(sorted(BOUNDS)),
    rows=st.integers(1, 140),
    columns=st.integers(1, 140),
    seed=st.integers(0, 99),
)
def test_the_error_is_bounded_by_the_blocks_largest(name, rows, columns, seed):
    x, scaling = matrix(rows, columns, seed), ALL[name]
    held = quantize(x, scaling)
    amax = tile_amax(x, scaling.tile)
    full = amax.repeat_interleave(scaling.tile[0], 0).repeat_interleave(scaling.tile[1], 1)
    assert (errors(x, scaling) <= BOUNDS[name] * full[:rows, :columns]).all()
    assert held.dequantize().shape == x.shape


@pytest.mark.parametrize("scaling", [SQUARES, WHOLE, Scaling(E5M2, None, float32_scale)])
def test_a_transpose_of_symmetric_tiles_is_the_transposes(scaling):
    x = matrix(150, 300)
    ours, expected = quantize(x, scaling).transpose(), quantize(x.t(), scaling)
    assert torch.equal(ours.dequantize(), expected.dequantize())
    assert all(torch.equal(a.float(), b.float()) for a, b in zip(ours.tensors, expected.tensors))


BYTES = {
    "lines": 1 + 1 / 128, "squares": 1 + 1 / 128**2, "MXFP8": 1 + 1 / 32, "MXFP4": 0.5 + 1 / 32,
    "NVFP4": 0.5 + 1 / 16, "whole": 1.0,
}  # fmt: skip


@pytest.mark.parametrize("name", ALL)
def test_bytes_a_number_are_what_is_held(name):
    x = matrix(128, 256)
    held = quantize(x, ALL[name])
    beside = 4 + 4 * (name == "whole")  # the float32 scale of all, and here the only one
    assert held.nbytes == BYTES[name] * x.numel() + beside


# Formats


FP8 = [E4M3, E5M2]
INFINITE = float("inf")
E2M1_TABLE = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]  # OCP MX 1.0, table 5, by code

# OCP FP8 (OFP8) 1.0, table 1: largest, smallest normal, largest and smallest subnormal, with codes.
LIMITS = {
    "E4M3": {0x7E: 448.0, 0x08: 2**-6, 0x07: 0.875 * 2**-6, 0x01: 2**-9},
    "E5M2": {0x7B: 57344.0, 0x04: 2**-14, 0x03: 0.75 * 2**-14, 0x01: 2**-16},
}


def finite_codes(form) -> torch.Tensor:
    codes = torch.arange(256, dtype=torch.uint8)
    return codes[codes.view(form.dtype).float().isfinite()]


def every_bfloat16() -> torch.Tensor:
    return torch.arange(2**16).to(torch.int16).view(torch.bfloat16).float()


def ties_and_their_neighbours(form) -> torch.Tensor:
    """Half-way between each two neighbours, and the float32 numbers just under and over it."""
    values = finite_codes(form).view(form.dtype).float().unique()
    ties = (values[:-1] + values[1:]) / 2
    limit = torch.tensor(INFINITE)
    return torch.cat([ties, ties.nextafter(limit), ties.nextafter(-limit), values])


def same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    both_nan = a.isnan() & b.isnan()
    return bool(((a.view(torch.int32) == b.view(torch.int32)) | both_nan).all())


@pytest.mark.parametrize("form", FP8, ids=lambda form: form.name)
def test_rounding_equals_torchs_bit_for_bit(form):
    x = torch.cat([every_bfloat16(), ties_and_their_neighbours(form), 100 * torch.randn(10_000)])
    inside = x[x.abs() <= form.largest]
    assert same_bits(round_to(inside, form), inside.to(form.dtype).float())
    assert same_bits(round_to(x, form), cast(x, form).float())


@pytest.mark.parametrize("form", FP8, ids=lambda form: form.name)
def test_codes_are_torchs_over_all_of_them(form):
    codes = finite_codes(form)
    values = codes.view(form.dtype).float()
    assert same_bits(from_codes(codes, form), values)
    assert torch.equal(to_codes(values, form), codes)
    for code, value in LIMITS[form.name].items():
        assert from_codes(torch.tensor(code, dtype=torch.uint8), form) == value
    assert (form.largest, form.smallest) == (values.max(), values[values > 0].min())


@pytest.mark.parametrize("form", [*FP8, E2M1], ids=lambda form: form.name)
def test_too_large_is_clamped_and_nan_stays(form):
    too_large = torch.tensor([form.largest * 1.2, 1e9, INFINITE, -INFINITE, float("nan")])
    expected = torch.tensor([1.0, 1.0, 1.0, -1.0, float("nan")]) * form.largest
    assert same_bits(round_to(too_large, form), expected)
    if form.dtype:
        assert same_bits(cast(too_large, form).float(), expected)


def test_e2m1_is_ocps_table():
    codes = torch.arange(16, dtype=torch.uint8)
    expected = torch.tensor(E2M1_TABLE + [-value for value in E2M1_TABLE])
    assert same_bits(from_codes(codes, E2M1), expected)
    assert torch.equal(to_codes(expected, E2M1), codes)
    assert (E2M1.largest, E2M1.smallest, E2M1.largest_exponent) == (6.0, 0.5, 2)
    assert (E4M3.largest_exponent, E5M2.largest_exponent) == (8, 15)  # OCP MX 1.0: emax


TIES = {0.25: 0.0, 0.75: 1.0, 1.25: 1.0, 1.75: 2.0, 2.5: 2.0, 3.5: 4.0, 5.0: 4.0}  # to even codes


def test_e2m1_rounds_to_the_nearest_and_ties_to_even():
    x = torch.tensor(list(TIES))
    assert torch.equal(round_to(x, E2M1), torch.tensor(list(TIES.values())))
    assert torch.equal(round_to(-x, E2M1), -torch.tensor(list(TIES.values())))
    x = 3 * torch.randn(2000)
    table = torch.tensor(E2M1_TABLE + [-value for value in E2M1_TABLE])
    nearest = (x.unsqueeze(1) - table).abs().min(dim=1).values
    torch.testing.assert_close((round_to(x, E2M1) - x).abs(), nearest, rtol=0, atol=0)


@pytest.mark.parametrize("form", [*FP8, E2M1], ids=lambda form: form.name)
def test_what_is_packed_comes_back(form):
    x = torch.randn(5, 8)
    held = pack(x, form)
    assert held.shape == (5, 8 if form.bits == 8 else 4) and held.element_size() == 1
    assert same_bits(unpack(held, form), round_to(x, form))
    if form.dtype:  # every byte, also those of nan and inf
        codes = torch.arange(256, dtype=torch.uint8).unsqueeze(1)
        assert same_bits(unpack(codes, form), codes.view(form.dtype).float())
    else:
        assert pack(torch.tensor([0.5, -6.0]), E2M1).item() == 0x1 + 16 * 0xF, "low half first"
