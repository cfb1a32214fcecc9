from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from minitrain.errors import InputError
from minitrain.precision import low_bit_linear as recipes
from minitrain.precision.blocks import quantize
from minitrain.quantization.formats import grids
from minitrain.quantization.formats.grids import NF4, Codebook, normal_levels
from minitrain.quantization.formats.names import FLOATS, named
from minitrain.quantization.formats.weight import WIDTHS, expand, pack, quantize_blocks, unpack

TILINGS = ("tensor", "row", "g32", "b48")
INTEGERS = [f"int{b}{z}-{t}" for b in WIDTHS for z in ("", "f", "z") for t in TILINGS]
CLIPPED = ["int3f-row-mse", "int4z-g32-mse", "nf4-b64-mse", "int4-g32-mse-dq"]
ALL = [*INTEGERS, "nf4", "fp4", "nf4-g32", "nf4-dq", "int4-g32-dq", *CLIPPED, *FLOATS]

# QLoRA (arXiv:2305.14314), appendix E.
PUBLISHED_NF4 = [
    -1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453,
    -0.28444138169288635, -0.18477343022823334, -0.09105003625154495, 0.0,
    0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224,
    0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0,
]  # fmt: skip


def normal(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def matrix(rows=6, columns=80):
    return normal(rows, columns)


@given(st.sampled_from(WIDTHS), st.integers(0, 40), st.integers(0, 99))
@settings(max_examples=60, deadline=None)
def test_packing_gives_every_code_back_in_the_fewest_bytes(bits, count, seed):
    codes = torch.randint(2**bits, (count,), generator=torch.Generator().manual_seed(seed)).byte()
    held = pack(codes, bits)
    unit = 3 if bits == 3 else 1
    assert len(held) == math.ceil(count * bits / (8 * unit)) * unit
    assert torch.equal(unpack(held, bits, count), codes)


def test_the_first_code_is_in_the_highest_bits():
    assert pack(torch.tensor([1, 2, 3, 0]).byte(), 2).tolist() == [0b01101100]
    bits = "".join(f"{code:03b}" for code in range(8))
    assert pack(torch.arange(8).byte(), 3).tolist() == [int(bits[i : i + 8], 2) for i in (0, 8, 16)]


@pytest.mark.parametrize("name", ALL)
def test_a_format_is_found_by_its_own_name_and_gives_back_what_it_holds(name):
    form, weight = named(name), matrix()
    assert named(form.name) == form
    held = form.quantize(weight)
    back = held.dequantize()
    assert back.shape == weight.shape and back.dtype == torch.float32
    most = {2: 1.0, 3: 0.4, 4: 0.25}.get(getattr(getattr(form, "grid", None), "bits", 4), 0.1)
    assert 0 < (back - weight).norm() / weight.norm() < most
    again = form.quantize(back).dequantize()
    if "tensor" not in name and not name.startswith(("int2", "int3", "int4f")) and "dq" not in name:
        torch.testing.assert_close(again, back, rtol=0.05, atol=0.06)


@pytest.mark.parametrize("name", INTEGERS)
def test_an_integer_errs_by_half_a_level_at_most(name):
    form, weight = named(name), matrix() + 0.3
    tiles = form.tiling.cut(weight)
    params = form.grid.fit(tiles)
    error = (form.grid.decode(form.grid.encode(tiles, params), params) - tiles).abs()
    at_the_ends = 2 if "z" in name else 1  # a rounded zero point moves both
    assert (error <= at_the_ends * params["scale"] / 2 * (1 + 1e-4)).all()
    assert (error > params["scale"] / 4).any(), "or levels would be unused"


@pytest.mark.parametrize("bits", [2, 3, 4])
def test_the_full_range_is_compressed_tensors_symmetric_one(bits):
    """Theirs: scale = max|w| / ((2^b - 1) / 2), q = clamp(round(w / scale), -2^(b-1), 2^(b-1)-1)."""
    weight = matrix(40)
    scale = weight.abs().amax(1, keepdim=True) / ((2**bits - 1) / 2)
    q = (weight / scale).round().clamp(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
    torch.testing.assert_close(named(f"int{bits}f-row").quantize(weight).dequantize(), q * scale)
    assert len(q.unique()) == 2**bits, "every code is used"
    narrow = named(f"int{bits}-row").quantize(weight).dequantize()
    assert (q * scale - weight).norm() < (narrow - weight).norm()


@pytest.mark.parametrize("name", CLIPPED)
def test_a_clipped_tile_has_the_least_error_of_all_its_ranges(name):
    """Against GPTQ's own loop (quant.py, `find_params` with mse): a tile at a time."""
    form, tiles = named(name), matrix(12, 32)
    params = form.fit(tiles)
    for row in range(len(tiles)):
        tile, errors = tiles[row : row + 1], {}
        for i in range(80):
            p = 1 - i / 100
            tried = form.grid.fit(tile * p)
            q = form.grid.decode(form.grid.encode(tile, tried), tried)
            errors[(q - tile).abs().pow(2.4).sum().item()] = tried
        best = errors[min(errors)]
        torch.testing.assert_close(params["scale"][row], best["scale"][0], rtol=1e-5, atol=0)


@pytest.mark.parametrize("name", ALL)
def test_zero_stays_exactly_zero(name):
    weight = matrix().abs() + 1  # all positive: 0 is outside [min, max]
    weight[:, ::3] = 0
    weight[2] = 0
    back = named(name).quantize(weight).dequantize()
    assert back.isfinite().all() and (back[:, ::3] == 0).all() and (back[2] == 0).all()
    assert (named(name).quantize(torch.zeros(4, 64)).dequantize() == 0).all()


@pytest.mark.parametrize("name", ["int8", "int4", "int4z", "nf4"])
@pytest.mark.parametrize("size", [1e-42, 1e-30, 1e30])
def test_numbers_of_any_size(name, size):
    back = named(name).quantize(matrix() * size).dequantize()
    assert back.isfinite().all()
    if size > 1e-40:
        assert (back / size - matrix()).norm() < 0.2 * matrix().norm()


BITS = {"int8": 8 + 32 / 256, "int4z-g64": 4 + 32 / 64 + 4 / 64, "int3-g128": 3 + 32 / 128}
BITS |= {"nf4": 4.5, "nf4-dq": 4 + 8 / 64 + 32 / (64 * 256), "mxfp4": 4 + 8 / 32, "nvfp4": 4.5}


@pytest.mark.parametrize("name", BITS)
def test_bits_a_weight_count_the_scales(name):
    held, bits = named(name).quantize(matrix(256, 256)), BITS[name]
    few = 8 * 4 / 256**2  # one float32 for the whole matrix: a mean, or an outer scale
    assert bits <= held.bits_per_weight <= bits + few
    assert held.nbytes == sum(t.numel() * t.element_size() for t in held.tensors.values())


def test_nf4_is_the_published_table():
    assert torch.equal(torch.tensor(NF4.levels), torch.tensor(PUBLISHED_NF4))
    assert sum(level < 0 for level in NF4.levels) == 7 and 0.0 in NF4.levels
    held = named("nf4").quantize(torch.tensor(PUBLISHED_NF4).repeat(4).view(2, 32) * 3)
    assert held.tensors["codes"].tolist() == [0x01, 0x23, 0x45, 0x67, 0x89, 0xAB, 0xCD, 0xEF] * 4


@pytest.mark.parametrize("name", FLOATS)
def test_floats_are_those_of_precision(name):
    recipe = {"fp8": "CURRENT", "mxfp8": "MXFP8", "mxfp4": "MXFP4", "nvfp4": "NVFP4"}[name]
    expected = quantize(matrix(), getattr(recipes, recipe).weight).dequantize()
    assert torch.equal(named(name).quantize(matrix()).dequantize(), expected)


@pytest.mark.parametrize(
    ("given", "answer"),
    [("int5", "int"), ("nf4-g", "known are"), ("int4-g1", "group of 1"), ("", "known are")],
)
def test_unknown_names_are_answered(given, answer):
    with pytest.raises(InputError, match=answer):
        named(given)


def test_what_has_no_scale_is_refused():
    weight = matrix()
    weight[0, 0], weight[1, 1] = math.nan, math.inf
    for name in ("int4", "nf4-dq", "mxfp4"):
        with pytest.raises(InputError, match="2 of 480 weights are inf or nan"):
            named(name).quantize(weight)
        with pytest.raises(InputError, match="no weight matrix"):
            named(name).quantize(weight[0])


@pytest.mark.parametrize("name", ["nf4", "fp4"])
def test_many_numbers_find_the_same_levels_as_few(name):
    """At every middle, beside it, at every cell's edge, and beyond both ends."""
    book = named(name).grid
    levels = torch.tensor(book.levels).sort().values
    middles, edges = (levels[1:] + levels[:-1]) / 2, torch.arange(-1024, 1025) / 1024
    points = torch.cat([middles, edges, torch.tensor([-3.0, -1e-9, 1e-9, 3.0])])
    around = [points, *(torch.nextafter(points, torch.tensor(end)) for end in (-9.0, 9.0))]
    x = torch.cat([*around, torch.linspace(-1.1, 1.1, 2**17)]).unsqueeze(0)
    one = {"scale": torch.ones(1, 1)}
    few = torch.cat([book.encode(part, one) for part in x.split(2**15, dim=1)], dim=1)
    assert torch.equal(book.encode(x, one), few)
    distance = (x.flatten().unsqueeze(1).clamp(-1, 1) - levels).abs()
    found = (x.flatten().clamp(-1, 1) - torch.tensor(book.levels)[few.flatten().int()]).abs()
    assert torch.allclose(found, distance.amin(dim=1), rtol=0, atol=1e-7)


def test_levels_too_near_for_a_cell_are_told_apart():
    book = Codebook("near", (-1.0, *(i / 8192 for i in range(14)), 1.0))
    x, one = torch.linspace(-0.01, 0.01, 2**17).unsqueeze(0), {"scale": torch.ones(1, 1)}
    nearest = (x.T - torch.tensor(book.levels)).abs().amin(dim=1)
    assert torch.allclose((x - book.decode(book.encode(x, one), one)).abs()[0], nearest, atol=1e-7)


@pytest.mark.parametrize("name", ["nf4", "nf4-dq", "fp4-g32", "nf4-b96", "nf4-g96"])
@pytest.mark.parametrize("shape", [(5, 192), (4, 96), (1, 2)])
def test_whole_tiles_are_decoded_piece_by_piece_to_the_same_bits(name, shape, monkeypatch):
    monkeypatch.setattr(grids, "PIECE", 128)
    form = named(name)
    held = form.quantize(torch.randn(shape, generator=torch.Generator().manual_seed(0)))
    codes = unpack(held.tensors["codes"], 4, shape[0] * shape[1]).view(shape)
    scale = expand(held.tensors) if form.double else held.tensors["scale"]
    tiles = form.grid.decode(form.tiling.cut(codes), {"scale": scale.unsqueeze(1)})
    assert torch.equal(held.dequantize(), form.tiling.join(tiles, shape))


# ---- blocks of any levels: the parts of double quantization, which lab e07 builds ----


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


@pytest.mark.parametrize("bits", [2, 3, 4, 5, 8])
def test_levels_of_any_bits_have_zero_and_one_more_above_it(bits):
    levels = normal_levels(bits)
    assert len(levels) == 2**bits and (levels.diff() > 0).all()
    assert levels[0] == -1 and levels[-1] == 1 and levels[2 ** (bits - 1) - 1] == 0
    x = normal(64, 64)
    equal = torch.arange(-(2 ** (bits - 1)) + 1, 2 ** (bits - 1)) / (2 ** (bits - 1) - 1)

    def error(which):
        codes, scales = quantize_blocks(x, which, 64)
        return (which[codes.int()].view(-1, 64) * scales[:, None] - x).std()

    assert bits in (2, 8) or error(levels) < error(equal)
    assert bits != 4 or torch.equal(levels, torch.tensor(NF4.levels))


# ---- bitsandbytes: the same table, the same bytes, the same way back ----


@pytest.fixture
def peer():
    return pytest.importorskip("bitsandbytes.functional", reason="not installed here")


@pytest.mark.parametrize("kind", ["nf4", "fp4"])
@pytest.mark.parametrize("block", [64, 128])
@pytest.mark.parametrize("shape", [(64, 128), (33, 192), (24, 96)])
def test_packed_bytes_and_scales(kind, block, shape, peer):
    weight = normal(*shape)
    weight[0, :7] = 0
    bytes_, state = peer.quantize_4bit(weight, blocksize=block, quant_type=kind)
    held = named(f"{kind}-b{block}").quantize(weight)
    levels = peer.get_4bit_type(kind, device="cpu")
    assert torch.equal(torch.tensor(named(kind).grid.levels), levels)
    assert torch.equal(held.tensors["codes"], bytes_.flatten())
    assert torch.equal(held.tensors["scale"], state.absmax)
    if shape[1] % block == 0:  # its AVX512 way back is wrong where a block runs over a row
        assert torch.equal(held.dequantize(), peer.dequantize_4bit(bytes_, state))


def test_double_quantization(peer):
    """All but a few of its 8-bit levels: there the lowest is -1, and ours -0.993."""
    weight = normal(512, 512)
    bytes_, state = peer.quantize_4bit(weight, quant_type="nf4", compress_statistics=True)
    held = named("nf4-dq").quantize(weight)
    assert torch.equal(held.tensors["codes"], bytes_.flatten())
    assert torch.equal(held.tensors["scale_mean"], state.offset)
    torch.testing.assert_close(held.tensors["scale_outer"], state.state2.absmax)
    same = held.tensors["scale_codes"] == state.absmax
    assert (~same).float().mean() < 0.01
    theirs = peer.dequantize_4bit(bytes_, state).view(-1, 64)[same]
    torch.testing.assert_close(held.dequantize().view(-1, 64)[same], theirs, rtol=1e-5, atol=1e-6)
    nbytes = sum(t.nbytes for t in (bytes_, state.absmax, state.state2.absmax, state.offset))
    assert held.nbytes == nbytes and round(8 * nbytes / weight.numel(), 3) == 4.127
