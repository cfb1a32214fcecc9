from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from minitrain.errors import InputError
from minitrain.finetuning.model import adapt
from minitrain.inference.cache.dense import DenseCache, read_on
from minitrain.model.config import ModelConfig
from minitrain.model.transformer import Transformer, build

SMALL = ModelConfig(61, 32, layers=2, heads=4, kv_heads=2, ffn_size=40, rope_theta=100.0)
KINDS = {
    "grouped": SMALL,
    "window": replace(SMALL, window=3),
    "experts": replace(SMALL, experts=4, qkv_bias=True),
}
MODELS = {name: build(config, dtype=torch.float64) for name, config in KINDS.items()}


def close(found: torch.Tensor, expected: torch.Tensor) -> bool:
    return torch.allclose(found, expected, rtol=1e-9, atol=1e-9)


@torch.no_grad()
def full(model: Transformer, tokens: torch.Tensor) -> torch.Tensor:
    return model(tokens)


def random_tokens(rows: int, length: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(SMALL.vocab_size, (rows, length), generator=generator)


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=15, deadline=None)
@given(chunks=st.lists(st.integers(1, 5), min_size=1, max_size=6), seed=st.integers(0, 99))
def test_every_chunking_gives_the_whole_texts_logits(kind, chunks, seed):
    model, length = MODELS[kind], sum(chunks)
    tokens = random_tokens(2, length, seed)
    cache, parts = DenseCache.of(model, 2, room=length), []
    for part in tokens.split(chunks, dim=1):
        parts.append(model.head(read_on(model, part, cache)))
    assert close(torch.cat(parts, dim=1), full(model, tokens))
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
        assert close(found[row], full(model, text)[0, length:])


def test_a_position_off_by_one_would_be_seen():
    model, cache = MODELS["grouped"], DenseCache.of(MODELS["grouped"], 1, room=8)
    tokens = random_tokens(1, 6)
    read_on(model, tokens[:, :5], cache)
    wrong = read_on(model, tokens[:, 5:], cache, positions=torch.tensor([[6]]))
    assert not close(model.head(wrong), full(model, tokens)[:, 5:])


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
            assert close(found[row, path], full(model, text)[0, start:])
    cache.keep(0, 6, [0, 2])
    cache.keep(1, 4, [0, 1, 3])
    assert cache.lengths == [8, 7]
    last = random_tokens(2, 1, seed=4)
    found = model.head(read_on(model, last, cache))
    for row, (start, path) in enumerate([(6, [0, 2]), (4, [0, 1, 3])]):
        text = torch.cat((prompt[row, :start], tree[row, path], last[row]))[None]
        assert close(found[row, 0], full(model, text)[0, -1])


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
