"""The dense cache and its relatives, the ring and the one in few bits, beside the whole text."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from minitrain.errors import InputError
from minitrain.finetuning.model import adapt
from minitrain.inference.cache.dense import DenseCache, read_on
from minitrain.inference.cache.quantized import QuantizedCache, Rounded
from minitrain.inference.cache.ring import RingCache
from minitrain.model.attention.grouped_query import attention
from minitrain.model.config import ModelConfig
from minitrain.model.transformer import Transformer, build, exchange_attention

SMALL = ModelConfig(61, 32, layers=2, heads=4, kv_heads=2, ffn_size=40, rope_theta=100.0)
KINDS = {
    "grouped": SMALL,
    "window": replace(SMALL, window=3),
    "experts": replace(SMALL, experts=4, qkv_bias=True),
}
MODELS = {name: build(c, dtype=torch.float64).requires_grad_(False) for name, c in KINDS.items()}


def close(found: torch.Tensor, expected: torch.Tensor) -> bool:
    return torch.allclose(found, expected, rtol=1e-9, atol=1e-9)


def logits(model: Transformer, cache, tokens: torch.Tensor, chunks: list[int]) -> torch.Tensor:
    """Of texts that are read in chunks."""
    parts = tokens.split(chunks, dim=1)
    return torch.cat([model.head(read_on(model, part, cache)) for part in parts], dim=1)


def random_tokens(rows: int, length: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(SMALL.vocab_size, (rows, length), generator=generator)


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=15, deadline=None)
@given(chunks=st.lists(st.integers(1, 5), min_size=1, max_size=6), seed=st.integers(0, 99))
def test_every_chunking_gives_the_whole_texts_logits(kind, chunks, seed):
    model, length = MODELS[kind], sum(chunks)
    tokens = random_tokens(2, length, seed)
    cache = DenseCache.of(model, 2, room=length)
    assert close(logits(model, cache, tokens, chunks), model(tokens))
    assert cache.lengths == [length, length]


@pytest.mark.parametrize("kind", KINDS)
def test_rows_of_different_lengths_equal_each_row_alone(kind):
    model, cache = MODELS[kind], DenseCache.of(MODELS[kind], 3, room=20)
    prompts, next_part = random_tokens(3, 7), random_tokens(3, 4, seed=1)
    lengths = [7, 2, 5]
    read_on(model, prompts, cache)
    cache.truncate(lengths)  # what stood behind a row's end is forgotten
    found = model.head(read_on(model, next_part, cache))
    for row, length in enumerate(lengths):
        text = torch.cat((prompts[row, :length], next_part[row]))[None]
        assert close(found[row], model(text)[0, length:])


def test_a_tree_of_tokens_reads_each_branch_by_itself_and_keeps_one():
    model, cache = MODELS["grouped"], DenseCache.of(MODELS["grouped"], 2, room=20)
    prompt, tree = random_tokens(2, 6), random_tokens(2, 4, seed=3)
    read_on(model, prompt, cache)
    cache.truncate([6, 4])
    #    0 ─ 1 ─ 3     token 2 is 1's rival
    #      └ 2
    seen = torch.tensor([[1, 0, 0, 0], [1, 1, 0, 0], [1, 0, 1, 0], [1, 1, 0, 1]]).bool()
    depths = torch.tensor([0, 1, 1, 2])
    starts = torch.tensor(cache.lengths)
    found = model.head(read_on(model, tree, cache, starts[:, None] + depths, seen))
    for row, start in enumerate([6, 4]):
        for path in ([0, 1, 3], [0, 2]):
            text = torch.cat((prompt[row, :start], tree[row, path]))[None]
            assert close(found[row, path], model(text)[0, start:])
    cache.keep(0, 6, [0, 2])
    cache.keep(1, 4, [0, 1, 3])
    assert cache.lengths == [8, 7]
    last = random_tokens(2, 1, seed=4)
    found = model.head(read_on(model, last, cache))
    for row, (start, path) in enumerate([(6, [0, 2]), (4, [0, 1, 3])]):
        text = torch.cat((prompt[row, :start], tree[row, path], last[row]))[None]
        assert close(found[row, 0], model(text)[0, -1])


def test_what_cannot_work_is_named():
    model = MODELS["grouped"]
    cache = DenseCache.of(model, 2, room=4)
    with pytest.raises(InputError, match="room for 4 tokens"):
        read_on(model, random_tokens(2, 5), cache)
    with pytest.raises(InputError, match="3 rows and the cache 2"):
        read_on(model, random_tokens(3, 1), cache)
    read_on(model, random_tokens(2, 3), cache)
    for wrong in ([1], [4, 1], [-1, 2]):
        with pytest.raises(InputError, match="cannot be cut"):
            cache.truncate(wrong)
    windowed = DenseCache.of(MODELS["window"], 1, 4)
    with pytest.raises(InputError, match="sliding window"):
        windowed.reader(2, seen=torch.ones(2, 2).bool())
    dropping = build(replace(SMALL, experts=4, capacity=1.0))
    with pytest.raises(InputError, match="drop tokens"):
        read_on(dropping, random_tokens(1, 1), DenseCache.of(dropping, 1, 4))
    prefixed = build(SMALL)
    adapt(prefixed, "prefix", tokens=2)
    with pytest.raises(InputError, match="learned tokens"):
        read_on(prefixed, random_tokens(1, 1), DenseCache.of(prefixed, 1, 4))


# The ring


PLAIN = MODELS["grouped"]


def masked(window: int, sinks: int):
    """The same model, whose every token reads the window and the sinks by a mask over all."""

    def make_mask(x, documents, _):
        place = torch.arange(x.shape[1])
        distance = place[:, None] - place
        seen = (distance >= 0) & ((distance < window) | (place < sinks))
        return torch.zeros(seen.shape, dtype=x.dtype).masked_fill_(~seen, -torch.inf)

    return exchange_attention(build(SMALL, dtype=torch.float64), attention, make_mask)


@settings(max_examples=40, deadline=None)
@given(
    chunks=st.lists(st.integers(1, 9), min_size=1, max_size=7),
    window=st.integers(1, 8),
    sinks=st.integers(0, 4),
)
def test_a_ring_reads_what_a_mask_over_the_whole_text_leaves(chunks, window, sinks):
    length = sum(chunks)
    tokens, cache = random_tokens(2, length, length), RingCache.of(PLAIN, 2, window, sinks)
    assert close(logits(PLAIN, cache, tokens, chunks), masked(window, sinks)(tokens))
    assert cache.keys.shape[3] == window + sinks and cache.lengths == [length, length]


def test_a_model_trained_with_a_window_is_read_as_it_is():
    model, tokens = MODELS["window"], random_tokens(1, 20)
    assert close(logits(model, RingCache.of(model, 1), tokens, [1] * 20), model(tokens))


@pytest.mark.parametrize("mistake", ["sinks are written over", "a chunk is written first"])
def test_plausible_rings_are_found_wrong(mistake, monkeypatch):
    tokens, cache = random_tokens(1, 12), RingCache.of(PLAIN, 1, window=4, sinks=2)
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
    found = logits(PLAIN, cache, tokens, [7, 5])
    assert not torch.allclose(found, masked(4, 2)(tokens), atol=1e-6)


def test_what_cannot_be_a_ring_is_named():
    with pytest.raises(InputError, match="no window of its own"):
        RingCache.of(PLAIN, 1)
    with pytest.raises(InputError, match="window 0, sinks 0"):
        RingCache.of(PLAIN, 1, window=0)
    with pytest.raises(InputError, match="trained with a window of 3"):
        RingCache(replace(SMALL, window=3), 1, window=5)


# The cache in few bits


WIDE = build(replace(SMALL, hidden_size=64, ffn_size=64), dtype=torch.float64).requires_grad_(False)
TOKENS = random_tokens(2, 160)


def wide_logits(cache, chunks: list[int]) -> torch.Tensor:
    return logits(WIDE, cache, TOKENS[:, : sum(chunks)], chunks)


@pytest.mark.parametrize("bits", [8, 4])
def test_each_number_is_at_most_half_a_step_of_its_range_off(bits):
    rows = torch.randn(50, 32, generator=torch.Generator().manual_seed(1)) * 3 + 20
    rounded = Rounded.of(rows, bits)
    step = (rows.amax(1) - rows.amin(1)) / (2**bits - 1)
    assert ((rounded.restored() - rows).abs().amax(1) <= step * 0.5001).all()


@pytest.mark.parametrize("chunks", [[24], [1] * 24, [5, 19], [23, 1]])
def test_what_is_within_the_residual_is_exact(chunks):
    dense = wide_logits(DenseCache.of(WIDE, 2, 24), chunks)
    torch.testing.assert_close(wide_logits(QuantizedCache.of(WIDE, 2, residual=24), chunks), dense)


def test_positions_are_on_the_models_device():
    model, tokens = build(WIDE.config, device="meta"), TOKENS.to("meta")
    assert read_on(model, tokens, QuantizedCache.of(model, 2, residual=160)).is_meta


@settings(max_examples=40, deadline=None)
@given(
    chunks=st.lists(st.integers(1, 20), min_size=1, max_size=8),
    group=st.integers(1, 24),
    residual=st.integers(0, 24),
)
def test_in_any_chunks_a_token_is_rounded_late_once_and_never_again(chunks, group, residual):
    cache = QuantizedCache.of(WIDE, 2, bits=8, group=group, residual=residual)
    before: list[Rounded] = []
    for part in TOKENS[:, : sum(chunks)].split(chunks, dim=1):
        read_on(WIDE, part, cache)
        rounded, full = cache.keys[0], cache.new[0][0].shape[2]
        assert len(rounded) * group + full == cache.lengths[0]
        assert full < group + residual and (not rounded or full >= residual)
        assert all(old is same for old, same in zip(before, rounded))
        before = list(rounded)
    dense = wide_logits(DenseCache.of(WIDE, 2, sum(chunks)), chunks)
    again = QuantizedCache.of(WIDE, 2, bits=8, group=group, residual=residual)
    assert (wide_logits(again, chunks) - dense).norm() < 0.03 * dense.norm()


@pytest.mark.parametrize("bits", [8, 4])
def test_bytes_are_the_documented_ones(bits):
    cache = QuantizedCache.of(WIDE, 2, bits=bits, group=32, residual=16)
    wide_logits(cache, [144])
    rounded, size = 128, WIDE.config.head_size  # 16 are left in full
    numbers = 2 * SMALL.layers * SMALL.kv_heads * size  # of keys, and of values: for both rows
    extra = 64 + bits
    expected = numbers * rounded * (2 * bits + extra / 32 + extra / size) / 8
    assert cache.nbytes == expected + 2 * numbers * 16 * 8  # float64
    dense = DenseCache.of(WIDE, 2, 144)
    assert cache.nbytes < (dense.keys.nbytes + dense.values.nbytes) / 2


def test_what_cannot_be_held_is_named():
    with pytest.raises(InputError, match="3 bits"):
        QuantizedCache(SMALL, 1, bits=3)
    with pytest.raises(InputError, match="group is 0"):
        QuantizedCache(SMALL, 1, group=0)
