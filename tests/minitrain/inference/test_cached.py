from __future__ import annotations

import pytest
import torch
from transformers import DynamicCache

from minitrain.bench.training import as_llama
from minitrain.data.assets.fetch import fetch, is_cached
from minitrain.errors import InputError
from minitrain.inference.sampling import generate, generate_cached
from minitrain.model.config import ModelConfig
from minitrain.model.hub.llama2c import load_llama2c
from minitrain.model.transformer import build

SMALL = ModelConfig(61, 32, layers=2, heads=4, kv_heads=2, ffn_size=40)


@pytest.mark.parametrize("temperature", [0.0, 1.5])
def test_tells_what_the_naive_version_tells(temperature):
    model = build(SMALL, dtype=torch.float64)
    texts = [
        make(model, [3, 1, 4], 30, temperature, generator=torch.Generator().manual_seed(7))
        for make in (generate, generate_cached)
    ]
    assert texts[0] == texts[1]
    assert len(set(texts[0])) > 1


def test_ends_before_the_end_token():
    model = build(SMALL, dtype=torch.float64)
    told = generate_cached(model, [3, 1, 4], 10, temperature=0)
    assert (
        generate_cached(model, [3, 1, 4], 10, temperature=0, end_token=told[4])
        == (told[: told.index(told[4])])
    )
    assert generate_cached(model, [3], 0) == []


def test_an_empty_prompt_is_named():
    with pytest.raises(InputError, match="prompt is empty"):
        generate_cached(build(SMALL), [], 3)


@pytest.mark.skipif(not is_cached("stories15M"), reason="python -m minitrain assets stories15M")
def test_transformers_tells_the_same_story_token_for_token():
    model, tokenizer = load_llama2c(fetch("stories15M", progress=False))
    prompt = tokenizer.encode("The little dog")
    peer = as_llama(model).eval()
    ids = torch.tensor([prompt])
    theirs = peer.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        max_new_tokens=40,
        do_sample=False,
        past_key_values=DynamicCache(),
        pad_token_id=0,
    )
    assert generate_cached(model, prompt, 40, temperature=0) == theirs[0, len(prompt) :].tolist()
