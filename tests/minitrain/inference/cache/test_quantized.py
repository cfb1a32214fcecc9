from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from minitrain.errors import InputError
from minitrain.inference.cache.dense import DenseCache, read_on
from minitrain.inference.cache.quantized import QuantizedCache, Rounded
from minitrain.model.config import ModelConfig
from minitrain.model.transformer import build

SMALL = ModelConfig(61, 64, layers=2, heads=4, kv_heads=2, ffn_size=64, rope_theta=100.0)
MODEL = build(SMALL, dtype=torch.float64)
TOKENS = torch.randint(61, (2, 160), generator=torch.Generator().manual_seed(0))


def logits(cache, chunks: list[int]) -> torch.Tensor:
    parts = TOKENS[:, : sum(chunks)].split(chunks, dim=1)
    return torch.cat([MODEL.head(read_on(MODEL, part, cache)) for part in parts], dim=1)


@pytest.mark.parametrize("bits", [8, 4])
def test_each_number_is_at_most_half_a_step_of_its_range_off(bits):
    rows = torch.randn(50, 32, generator=torch.Generator().manual_seed(1)) * 3 + 20
    rounded = Rounded.of(rows, bits)
    step = (rows.amax(1) - rows.amin(1)) / (2**bits - 1)
    assert ((rounded.restored() - rows).abs().amax(1) <= step * 0.5001).all()


@pytest.mark.parametrize("chunks", [[24], [1] * 24, [5, 19], [23, 1]])
def test_what_is_within_the_residual_is_exact(chunks):
    dense = logits(DenseCache.of(MODEL, 2, 24), chunks)
    torch.testing.assert_close(logits(QuantizedCache.of(MODEL, 2, residual=24), chunks), dense)


def test_positions_are_on_the_models_device():
    model, tokens = build(SMALL, device="meta"), TOKENS.to("meta")
    assert read_on(model, tokens, QuantizedCache.of(model, 2, residual=160)).is_meta


@settings(max_examples=40, deadline=None)
@given(
    chunks=st.lists(st.integers(1, 20), min_size=1, max_size=8),
    group=st.integers(1, 24),
    residual=st.integers(0, 24),
)
def test_in_any_chunks_a_token_is_rounded_late_once_and_never_again(chunks, group, residual):
    cache = QuantizedCache.of(MODEL, 2, bits=8, group=group, residual=residual)
    before: list[Rounded] = []
    for part in TOKENS[:, : sum(chunks)].split(chunks, dim=1):
        read_on(MODEL, part, cache)
        rounded, full = cache.keys[0], cache.new[0][0].shape[2]
        assert len(rounded) * group + full == cache.lengths[0]
        assert full < group + residual and (not rounded or full >= residual)
        assert all(old is same for old, same in zip(before, rounded))
        before = list(rounded)
    dense = logits(DenseCache.of(MODEL, 2, sum(chunks)), chunks)
    again = QuantizedCache.of(MODEL, 2, bits=8, group=group, residual=residual)
    assert (logits(again, chunks) - dense).norm() < 0.03 * dense.norm()


@pytest.mark.parametrize("bits, most", [(8, 0.02), (4, 0.3)])
def test_the_error_does_not_grow_with_the_position(bits, most):
    """Relative to the logits' spread, over 40 tokens each, once everything old is rounded."""
    chunks = [1] * 160
    dense = logits(DenseCache.of(MODEL, 2, 160), chunks)
    cache = QuantizedCache.of(MODEL, 2, bits=bits, group=16, residual=0)
    error = (logits(cache, chunks) - dense).norm(dim=-1) / dense.norm(dim=-1)  # (B, T)
    parts = error.mean(dim=0)[40:].view(3, 40).mean(dim=1)
    assert 0 < parts[0] < most
    assert parts[2] < 1.3 * parts[0]


def attention_error(k: torch.Tensor, by_channel: bool) -> float:
    """Of scores q·k, with keys (T, C) rounded in 4 bits by channel, or by token."""
    q = torch.randn(64, k.shape[1], generator=torch.Generator().manual_seed(2))
    rounded = Rounded.of(k.T, 4).restored().T if by_channel else Rounded.of(k, 4).restored()
    return float((q @ (rounded - k).T).norm() / (q @ k.T).norm())


def test_keys_with_large_channels_want_a_range_for_each_channel():
    k = torch.randn(32, 48, generator=torch.Generator().manual_seed(3))
    k[:, [5, 17]] = k[:, [5, 17]] + 30
    assert attention_error(k, by_channel=True) < attention_error(k, by_channel=False) / 3


@pytest.mark.parametrize("bits", [8, 4])
def test_bytes_are_the_documented_ones(bits):
    cache = QuantizedCache.of(MODEL, 2, bits=bits, group=32, residual=16)
    logits(cache, [144])
    rounded, size = 128, SMALL.head_size  # 16 are left in full
    numbers = 2 * SMALL.layers * SMALL.kv_heads * size  # of keys, and of values: for both rows
    extra = 64 + bits
    expected = numbers * rounded * (2 * bits + extra / 32 + extra / size) / 8
    assert cache.nbytes == expected + 2 * numbers * 16 * 8  # float64
    dense = DenseCache.of(MODEL, 2, 144)
    assert cache.nbytes < (dense.keys.nbytes + dense.values.nbytes) / 2


def test_what_cannot_be_held_is_named():
    with pytest.raises(InputError, match="3 bits"):
        QuantizedCache(SMALL, 1, bits=3)
    with pytest.raises(InputError, match="group 0"):
        QuantizedCache(SMALL, 1, group=0)
