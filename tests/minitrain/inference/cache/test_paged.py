from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from minitrain.inference.cache.dense import DenseCache, read_on
from minitrain.inference.cache.paged import (
    PagedCache,
    Part,
    Tile,
    batching_order,
    paged_attention,
    paged_attention_naive,
)
from minitrain.inference.forward import forward_new
from minitrain.model.attention.grouped_query import attention_naive
from minitrain.model.config import ModelConfig
from minitrain.model.transformer import build

SMALL = ModelConfig(61, 32, layers=2, heads=4, kv_heads=2, ffn_size=40, rope_theta=100.0)
DOUBLE = torch.float64


def scattered(lengths: list[int], size: int, seed: int) -> tuple[PagedCache, list[list[int]]]:
    """A cache of random keys and values, and texts whose pages lie anywhere; the last one begins
    with the first one's first page, where both have a full one."""
    generator = torch.Generator().manual_seed(seed)
    pages = [-(-length // size) for length in lengths]
    cache = PagedCache(SMALL, sum(pages) + 3, size, dtype=DOUBLE)
    for held in (cache.keys, cache.values):
        held.copy_(torch.randn(held.shape, generator=generator, dtype=DOUBLE))
    order = iter(torch.randperm(sum(pages) + 3, generator=generator).tolist())
    tables = [[next(order) for _ in range(count)] for count in pages]
    if min(lengths[0], lengths[-1]) > size:
        tables[-1][0] = tables[0][0]
    return cache, tables


@settings(max_examples=40, deadline=None)
@given(
    lengths=st.lists(st.integers(1, 30), min_size=1, max_size=5),
    count=st.integers(1, 6),
    size=st.integers(1, 7),
    span=st.integers(1, 40),
    window=st.sampled_from([None, 1, 5]),
    seed=st.integers(0, 99),
)
def test_pages_anywhere_read_as_one_text(lengths, count, size, span, window, seed):
    lengths = [max(length, count) for length in lengths]
    cache, tables = scattered(lengths, size, seed)
    cache.window = window
    parts = [Part(table, n - count, count) for table, n in zip(tables, lengths)]
    tile = Tile(cache, parts, span=span)
    q = torch.randn(len(parts), 4, count, 8, dtype=DOUBLE)
    layer = cache.keys[1], cache.values[1]
    found = paged_attention(q, *layer, tile)
    torch.testing.assert_close(found, paged_attention_naive(q, *layer, tile))
    for row, (table, length) in enumerate(zip(tables, lengths)):
        k, v = (held[:, table].flatten(1, 2)[None, :, :length] for held in layer)
        distance = torch.arange(length - count, length)[:, None] - torch.arange(length)
        seen = (distance >= 0) & (distance < (window or length))
        mask = torch.zeros(count, length, dtype=DOUBLE).masked_fill_(~seen, -torch.inf)
        torch.testing.assert_close(
            found[row : row + 1], attention_naive(q[row : row + 1], k, v, mask)
        )


def chunked(cache: PagedCache, model, text, table, chunks, whole_length=False):
    """The logits of a text that is read in chunks; nano-vllm 25794a1 took a chunk's keys to end
    where the whole text ends."""
    found, start = [], 0
    for count in chunks:
        reader = cache.reader([Part(table, start, count)])
        if whole_length:
            own = Tile(cache, [Part(table, len(text) - count, count)])
            reader.tiles = [own]
        hidden = forward_new(model, text[start : start + count, None], reader)
        found.append(model.head(hidden[:, 0]))
        start += count
    return torch.cat(found)


@pytest.mark.parametrize("whole_length, equal", [(False, True), (True, False)])
def test_every_chunking_gives_the_dense_caches_logits_25794a1(whole_length, equal):
    model = build(SMALL, dtype=DOUBLE)
    text = torch.randint(61, (23,), generator=torch.Generator().manual_seed(1))
    dense = DenseCache.of(model, 1, 23)
    expected = model.head(read_on(model, text[None], dense))[0]
    for chunks in ([23], [1] * 23, [4, 8, 11], [5, 1, 1, 16]):
        cache = PagedCache.of(model, 9, 4)
        cache.keys.normal_(), cache.values.normal_()
        found = chunked(cache, model, text, [7, 2, 5, 0, 8, 1], chunks, whole_length)
        if equal or len(chunks) > 1:
            assert torch.allclose(found, expected, rtol=1e-9, atol=1e-9) == equal


@pytest.mark.parametrize("window", [None, 4])
def test_a_step_of_many_texts_is_each_text_alone(window):
    """Answers that go on, a prompt's chunk, two of equal length: all in one forward pass."""
    model = build(replace(SMALL, window=window, experts=4), dtype=DOUBLE)
    cache = PagedCache.of(model, 30, 3)
    texts = torch.randint(61, (5, 20), generator=torch.Generator().manual_seed(2))
    starts, counts = [6, 11, 0, 4, 9], [1, 1, 7, 3, 3]
    pages = torch.randperm(30, generator=torch.Generator().manual_seed(3)).tolist()
    tables = [pages[6 * n : 6 * n + 6] for n in range(5)]
    for text, table, start in zip(texts, tables, starts):
        if start:
            forward_new(model, text[:start, None], cache.reader([Part(table, 0, start)]))
    parts = [Part(table, *each) for table, *each in zip(tables, starts, counts)]
    order = sorted(range(5), key=lambda n: batching_order(parts[n]))
    tokens = torch.cat([texts[n, starts[n] : starts[n] + counts[n]] for n in order])
    found = model.head(forward_new(model, tokens[:, None], cache.reader([parts[n] for n in order])))
    for n, own in zip(order, found[:, 0].split([counts[n] for n in order])):
        with torch.no_grad():
            expected = model(texts[n : n + 1, : starts[n] + counts[n]])[0, starts[n] :]
        torch.testing.assert_close(own, expected, rtol=1e-9, atol=1e-9)


def test_a_copied_block_is_another_one():
    cache, _ = scattered([9], size=3, seed=0)
    before = cache.keys.clone()
    cache.copy([(0, 4), (2, 5)])
    assert torch.equal(cache.keys[:, :, [4, 5]], before[:, :, [0, 2]])
    assert torch.equal(cache.keys[:, :, :4], before[:, :, :4])
