"""Tiled attention against the naive one in float64: values, every gradient, bytes."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from minitrain.errors import InputError
from minitrain.measure.memory import MemoryLedger
from minitrain.model.attention import tiled as module
from minitrain.model.attention.grouped_query import attention, attention_mask, attention_naive
from minitrain.model.attention.mask import Mask
from minitrain.model.attention.tiled import (
    row_products,
    tiled_attention,
    tiled_backward,
    tiled_forward,
)
from minitrain.model.config import ModelConfig
from minitrain.model.transformer import build, exchange_attention

EXACT = {"rtol": 0, "atol": 1e-10}


def random_heads(batch, heads, kv_heads, queries, keys, size, dtype=torch.float64):
    shapes = [(batch, heads, queries, size)] + [(batch, kv_heads, keys, size)] * 2
    return [torch.randn(shape, dtype=dtype, requires_grad=True) for shape in shapes]


def naive(q, k, v, mask):
    """The scores in full, and 0 for a row that reads nothing (naive attention says NaN)."""
    readable = mask.tile(slice(0, q.shape[2]), slice(0, k.shape[2]), q.device)
    if readable is None:
        return attention_naive(q, k, v, torch.zeros((), dtype=q.dtype))
    drawn = torch.zeros(readable.shape, dtype=q.dtype).masked_fill(~readable, -torch.inf)
    lonely = ~readable.any(dim=-1, keepdim=True)
    out = attention_naive(q, k, v, drawn.masked_fill(lonely, 0))
    return out.masked_fill(lonely, 0)


def with_gradients(f, q, k, v, mask, d_out):
    out = f(q, k, v, mask)
    return [out, *torch.autograd.grad(out, (q, k, v), d_out)]


def assert_same(got, want):
    for name, mine, theirs in zip(("out", "dq", "dk", "dv"), got, want):
        torch.testing.assert_close(mine, theirs, **EXACT, msg=lambda m, name=name: f"{name}: {m}")


@pytest.fixture
def small_tiles(monkeypatch):
    monkeypatch.setattr(module, "ROWS", 4)
    monkeypatch.setattr(module, "COLUMNS", 6)


@settings(max_examples=60, deadline=None)
@given(
    kv_heads=st.integers(1, 3),
    group=st.integers(1, 3),
    queries=st.integers(1, 19),
    keys=st.integers(1, 19),
    offset=st.one_of(st.none(), st.integers(-20, 20)),
    window=st.one_of(st.none(), st.integers(1, 20)),
    packed=st.booleans(),
    rows=st.integers(1, 7),
    columns=st.integers(1, 7),
    seed=st.integers(0, 99),
)
def test_equals_naive_with_every_gradient(
    kv_heads, group, queries, keys, offset, window, packed, rows, columns, seed
):
    torch.manual_seed(seed)
    q, k, v = random_heads(2, kv_heads * group, kv_heads, queries, keys, 4)
    documents = [torch.randint(0, 3, (2, n)).sort().values for n in (queries, keys)]
    mask = Mask(offset, window, *(documents if packed else (None, None))).between(queries, keys)
    d_out = torch.randn_like(q)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "ROWS", rows)
        patch.setattr(module, "COLUMNS", columns)
        got = with_gradients(tiled_attention, q, k, v, mask, d_out)
    assert_same(got, with_gradients(naive, q, k, v, mask, d_out))


@pytest.mark.parametrize("length", [1, 255, 256, 257, 700])
def test_lengths_around_a_tile_against_the_fused_kernel(length):
    q, k, v = random_heads(1, 2, 1, length, length, 4)
    d_out = torch.randn_like(q)
    want = with_gradients(attention, q, k, v, None, d_out)
    assert_same(with_gradients(tiled_attention, q, k, v, None, d_out), want)


def test_a_row_that_reads_nothing_is_0_and_says_so(small_tiles):
    q, k, v = random_heads(1, 2, 2, 9, 4, 4)
    out, lse = tiled_forward(q, k, v, Mask(None, None).between(9, 4))  # 5 queries before every key
    assert out[:, :, :5].eq(0).all() and lse[:, :, :5].eq(-torch.inf).all()
    assert lse[:, :, 5:].isfinite().all()


def test_large_scores_do_not_overflow(small_tiles):
    q, k, v = random_heads(1, 2, 2, 13, 13, 4)
    with torch.no_grad():
        q *= 1e4
    assert_same([tiled_attention(q, k, v)], [attention_naive(q, k, v)])


def test_a_part_of_the_keys_gives_its_part_of_the_gradient(small_tiles):
    q, k, v = random_heads(2, 4, 2, 10, 10, 4)
    mask, d_out, rows = Mask(0), torch.randn_like(q), slice(0, 10)
    want = with_gradients(tiled_attention, q, k, v, mask, d_out)
    out, lse = tiled_forward(q, k, v, mask)
    delta = row_products(d_out, out)
    parts = [
        tiled_backward(q, k[:, :, c], v[:, :, c], d_out, lse, delta, mask.part(rows, c))
        for c in (slice(0, 3), slice(3, 10))
    ]
    dq = parts[0][0] + parts[1][0]
    dk, dv = (torch.cat([part[i] for part in parts], dim=2) for i in (1, 2))
    assert_same([out, dq, dk, dv], want)


def extra_bytes(kernel, length):
    """Held at the peak of forward and backward beside q, k, v and what backward is given."""
    holder = torch.nn.ParameterList(random_heads(1, 2, 1, length, length, 4, torch.float32))
    d_out = torch.ones_like(holder[0])
    with MemoryLedger(holder) as ledger:
        d_out.add_(0)  # now the ledger knows it
        before = ledger.now_bytes
        ledger.reset_peak()
        kernel(*holder).backward(d_out)
    return ledger.peak_bytes - before


def test_bytes_are_linear_in_the_length():
    small, large, larger = (extra_bytes(tiled_attention, n) for n in (2048, 4096, 6144))
    a_token = (2 * 2 + 2 * 1) * 4 * 4  # out, dq, dk and dv, and what each row is summed up in
    assert 2048 * a_token <= large - small < 1.3 * 2048 * a_token
    assert larger - large == pytest.approx(large - small, rel=0.01), "so doubling L doubles them"
    a_tile = 2 * module.ROWS * module.COLUMNS * 4  # the scores of both heads
    assert a_tile < 2 * small - large < 4 * a_tile, "beside a few tiles, whatever the length"
    naive = [extra_bytes(attention_naive, length) for length in (256, 512)]
    assert naive[1] > 3.5 * naive[0], "the naive one's bytes grow with the square"


def test_tiles_that_causality_hides_are_never_touched():
    """Counted by their products: 2 forward and 5 backward a tile, for 6 of 8 (256 x 512) tiles."""
    from torch.utils.flop_counter import FlopCounterMode

    q, k, v = random_heads(1, 1, 1, 1024, 1024, 8, torch.float32)
    for mask, cells in (
        (Mask(0), 1024 * 1024 - 2 * 256 * 512 - 2 * 256 * 256),
        (Mask(0, 256), (256 + 3 * 511) * 256),
        (Mask(1023), 1024 * 1024),
    ):
        with FlopCounterMode(display=False) as counter:
            tiled_attention(q, k, v, mask).sum().backward()
        assert counter.get_total_flops() == 7 * 2 * 8 * cells


@pytest.mark.parametrize("window", [None, 5])
@pytest.mark.parametrize("packed", [False, True])
def test_in_the_transformer_it_takes_the_place_of_the_fused_kernel(window, packed):
    config = ModelConfig(23, 16, 2, heads=4, kv_heads=2, ffn_size=24, window=window, qkv_bias=True)
    model = build(config, dtype=torch.float64)
    tokens = torch.randint(23, (2, 13))
    documents = torch.randint(0, 2, (2, 13)).cumsum(1) if packed else None

    def gradients():
        model.zero_grad(set_to_none=True)
        logits = model(tokens, documents)
        logits.logsumexp(-1).sum().backward()
        return [logits.detach(), *(p.grad for p in model.parameters())]

    fused = gradients()
    exchange_attention(model, tiled_attention, Mask.of)
    for mine, theirs in zip(gradients(), fused, strict=True):
        torch.testing.assert_close(mine, theirs, **EXACT)
    exchange_attention(model, attention, attention_mask)
    assert all(torch.equal(a, b) for a, b in zip(gradients(), fused))


def test_bfloat16_sums_in_float32():
    q, k, v = random_heads(1, 4, 2, 300, 300, 16, torch.float32)
    half = [z.detach().bfloat16().requires_grad_() for z in (q, k, v)]
    out = tiled_attention(*half)
    assert out.dtype == torch.bfloat16
    want = attention_naive(*(z.detach().float() for z in half))
    torch.testing.assert_close(out.float(), want, rtol=2**-8, atol=2**-10)  # rounded once
    out.sum().backward()
    assert all(z.grad.dtype == torch.bfloat16 for z in half)


def test_shapes_that_do_not_fit_are_refused():
    q, k, v = random_heads(1, 4, 3, 5, 5, 4)
    with pytest.raises(InputError, match="4 query heads cannot share 3 key/value heads"):
        tiled_attention(q, k, v)
    with pytest.raises(InputError, match=r"k and v are \(B, K, J, C\)"):
        tiled_attention(q, k[:, :, :3], v)
