from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from minitrain.optimizers.adam8bit import BLOCK, dynamic_map
from minitrain.quantization.formats.grids import NF4, normal_levels
from minitrain.quantization.formats.names import named
from minitrain.quantization.formats.weight import (
    compress,
    expand,
    pack_pairs,
    quantize_blocks,
    unpack,
)


def matrix(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("name", ["nf4", "nf4-b32", "nf4-dq"])
def test_the_steps_give_the_bytes_of_the_format(name):
    weight, form = matrix(24, 40), named(name)
    held = form.quantize(weight)
    codes, scales = quantize_blocks(weight, normal_levels(4), form.tiling.size)
    assert torch.equal(pack_pairs(codes), held.tensors["codes"])
    if not form.double:
        assert torch.equal(scales, held.tensors["scale"])
        return
    small = compress(scales, dynamic_map(signed=True), BLOCK)
    assert torch.equal(small["scale_mean"], held.tensors["scale_mean"])
    torch.testing.assert_close(expand(small), expand(held.tensors), rtol=1e-6, atol=1e-7)
    assert sum(t.nbytes for t in small.values()) + len(held.tensors["codes"]) == held.nbytes


@given(st.integers(1, 300), st.integers(1, 70), st.integers(2, 256), st.integers(0, 99))
@settings(max_examples=40, deadline=None)
def test_no_level_is_nearer_than_the_one_that_was_taken(count, size, kinds, seed):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(count, generator=generator, dtype=torch.float64)
    inner = torch.rand(kinds, generator=generator) * 2 - 1
    levels = torch.cat([inner[2:], torch.tensor([-1.0, 1.0])]).sort().values
    codes, scales = quantize_blocks(x, levels, max(size, 2))
    own = scales.double().repeat_interleave(max(size, 2))[:count]
    error = (levels.double()[codes.long()] * own - x).abs()
    best = (levels.double() * own[:, None] - x[:, None]).abs().amin(dim=1)
    assert (error <= best + 1e-6).all()


def test_what_comes_back_is_on_its_own():
    weight = torch.nn.Parameter(matrix(5, 13))
    before = weight.detach().clone()
    codes, scales = quantize_blocks(weight, normal_levels(4), 16)
    assert not codes.requires_grad and not scales.requires_grad
    assert codes.untyped_storage().nbytes() == codes.numel() == 65 and len(scales) == 5
    assert torch.equal(weight.detach(), before)


def test_zeros_stay_zeros():
    codes, scales = quantize_blocks(torch.zeros(20), normal_levels(4), 8)
    assert (normal_levels(4)[codes.int()] == 0).all() and scales.isfinite().all()
    small = compress(torch.full((9,), 0.25), dynamic_map(signed=True), 4)
    assert torch.equal(expand({**small, "scale_outer": small["scale_outer"][:1]}), torch.full((9,), 0.25))  # fmt: skip


def test_the_mean_is_worth_taking_out():
    """A negative: the scales as they are, on levels of which half are below zero."""
    scales = 1 + 0.1 * matrix(1000)
    levels = dynamic_map(signed=True)
    kept = compress(scales, levels, BLOCK)
    codes, outer = quantize_blocks(scales, levels, BLOCK)
    plain = levels[codes.int()] * outer.repeat_interleave(BLOCK)[:1000]
    assert (plain - scales).std() > 3 * (expand(kept) - scales).std()


@pytest.mark.parametrize("bits", [2, 3, 4, 5, 8])
def test_levels_of_any_bits_have_zero_and_one_more_above_it(bits):
    levels = normal_levels(bits)
    assert len(levels) == 2**bits and (levels.diff() > 0).all()
    assert levels[0] == -1 and levels[-1] == 1 and levels[2 ** (bits - 1) - 1] == 0
    x = matrix(64, 64)
    equal = torch.arange(-(2 ** (bits - 1)) + 1, 2 ** (bits - 1)) / (2 ** (bits - 1) - 1)

    def error(which):
        codes, scales = quantize_blocks(x, which, 64)
        return (which[codes.int()].view(-1, 64) * scales[:, None] - x).std()

    assert bits in (2, 8) or error(levels) < error(equal)
    assert bits != 4 or torch.equal(levels, torch.tensor(NF4.levels))


@given(st.integers(0, 33), st.integers(0, 9))
@settings(max_examples=20, deadline=None)
def test_pairs_come_back(count, seed):
    codes = torch.randint(16, (count,), generator=torch.Generator().manual_seed(seed)).byte()
    held = pack_pairs(codes)
    assert len(held) == (count + 1) // 2 and torch.equal(unpack(held, 4, count), codes)
