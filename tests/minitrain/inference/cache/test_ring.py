from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from minitrain.errors import InputError
from minitrain.inference.cache.dense import read_on
from minitrain.inference.cache.ring import RingCache
from minitrain.model.attention.grouped_query import attention
from minitrain.model.config import ModelConfig
from minitrain.model.transformer import build, exchange_attention

SMALL = ModelConfig(61, 32, layers=2, heads=4, kv_heads=2, ffn_size=40, rope_theta=100.0)
DOUBLE = torch.float64
PLAIN = build(SMALL, dtype=DOUBLE)


def masked(window: int, sinks: int):
    """The same model, whose every token reads the window and the sinks by a mask over all."""

    def make_mask(x, documents, _):
        place = torch.arange(x.shape[1])
        distance = place[:, None] - place
        seen = (distance >= 0) & ((distance < window) | (place < sinks))
        return torch.zeros(seen.shape, dtype=x.dtype).masked_fill_(~seen, -torch.inf)

    return exchange_attention(build(SMALL, dtype=DOUBLE), attention, make_mask)


@settings(max_examples=40, deadline=None)
@given(
    chunks=st.lists(st.integers(1, 9), min_size=1, max_size=7),
    window=st.integers(1, 8),
    sinks=st.integers(0, 4),
)
def test_a_ring_reads_what_a_mask_over_the_whole_text_leaves(chunks, window, sinks):
    length = sum(chunks)
    tokens = torch.randint(61, (2, length), generator=torch.Generator().manual_seed(length))
    cache = RingCache.of(PLAIN, 2, window, sinks)
    parts = [PLAIN.head(read_on(PLAIN, part, cache)) for part in tokens.split(chunks, dim=1)]
    with torch.no_grad():
        expected = masked(window, sinks)(tokens)
    torch.testing.assert_close(torch.cat(parts, dim=1), expected, rtol=1e-9, atol=1e-9)
    assert cache.keys.shape[3] == window + sinks and cache.lengths == [length, length]


def test_a_model_trained_with_a_window_is_read_as_it_is():
    model = build(replace(SMALL, window=3), dtype=DOUBLE)
    tokens, cache = torch.randint(61, (1, 20)), RingCache.of(model, 1)
    found = torch.cat([model.head(read_on(model, t, cache)) for t in tokens.split(1, 1)], dim=1)
    with torch.no_grad():
        torch.testing.assert_close(found, model(tokens), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("mistake", ["sinks are written over", "a chunk is written first"])
def test_plausible_rings_are_found_wrong(mistake, monkeypatch):
    tokens, cache = torch.randint(61, (1, 12)), RingCache.of(PLAIN, 1, window=4, sinks=2)
    if mistake == "sinks are written over":
        monkeypatch.setattr(cache, "places", lambda tokens: tokens % 6)
        monkeypatch.setattr(
            cache, "kept", lambda start, new: torch.arange(max(start, start + new - 6), start + new)
        )
    else:
        monkeypatch.setattr(
            cache,
            "readable",
            lambda queries, keys: (
                RingCache.readable(cache, queries, keys)
                & ((keys < 0) | (keys > queries.max() - 4) | (keys < 2))
            ),
        )
    parts = [PLAIN.head(read_on(PLAIN, part, cache)) for part in tokens.split([7, 5], dim=1)]
    with torch.no_grad():
        expected = masked(4, 2)(tokens)
    assert not torch.allclose(torch.cat(parts, dim=1), expected, atol=1e-6)


def test_what_cannot_be_a_ring_is_named():
    with pytest.raises(InputError, match="no window of its own"):
        RingCache.of(PLAIN, 1)
    with pytest.raises(InputError, match="window 0, sinks 0"):
        RingCache.of(PLAIN, 1, window=0)
    with pytest.raises(InputError, match="trained with a window of 3"):
        RingCache(replace(SMALL, window=3), 1, window=5)
