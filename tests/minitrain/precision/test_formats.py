from __future__ import annotations

import pytest
import torch

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


def test_the_first_of_a_pair_is_in_the_low_half():
    assert pack(torch.tensor([0.5, -6.0]), E2M1).item() == 0x1 + 16 * 0xF
