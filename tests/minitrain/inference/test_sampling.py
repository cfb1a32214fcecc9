from __future__ import annotations

import pytest
import torch
from torch import nn

from minitrain.data.assets.fetch import fetch, is_cached
from minitrain.errors import InputError
from minitrain.inference.sampling import generate, next_token_probabilities
from minitrain.model.hub.llama2c import load_llama2c

LOGITS = torch.tensor([0.1, 2.0, -1.0, 1.0, 1.5])


class Counting(nn.Module):
    """Its likeliest next token is the last one plus 1; it notes how much it was given to read."""

    def __init__(self, vocabulary: int = 10):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(1))
        self.vocabulary, self.read = vocabulary, []

    def forward(self, tokens):
        self.read.append(tokens.tolist()[0])
        return 5.0 * nn.functional.one_hot((tokens + 1) % self.vocabulary, self.vocabulary)


def test_no_cut_is_softmax():
    expected = torch.softmax(LOGITS / 0.7, dim=0)
    torch.testing.assert_close(next_token_probabilities(LOGITS, temperature=0.7), expected)


def test_temperature_zero_is_the_likeliest():
    assert next_token_probabilities(LOGITS, temperature=0).tolist() == [0, 1, 0, 0, 0]


@pytest.mark.parametrize("k", [1, 2, 3, 5, 99])
def test_top_k_keeps_k_in_their_proportions(k):
    cut = next_token_probabilities(LOGITS, top_k=k)
    assert (cut > 0).sum() == min(k, 5)
    full = torch.softmax(LOGITS, dim=0)
    kept = cut > 0
    torch.testing.assert_close(cut[kept], full[kept] / full[kept].sum())
    assert full[kept].min() >= full[~kept].max() if k < 5 else kept.all()


def test_top_k_keeps_k_among_equals():
    assert (next_token_probabilities(torch.zeros(6), top_k=2) > 0).sum() == 2


@pytest.mark.parametrize("p", [0.01, 0.3, 0.6, 0.9, 0.999, 1.0])
def test_top_p_keeps_the_fewest_that_reach_p(p):
    full = torch.softmax(LOGITS, dim=0)
    kept = next_token_probabilities(LOGITS, top_p=p) > 0
    assert full[kept].sum() >= p - 1e-6
    assert full[kept].sum() - full[kept].min() < p  # one fewer would not reach it


def test_drawn_frequencies_are_the_probabilities():
    generator = torch.Generator().manual_seed(0)
    model = Counting(4)
    drawn = [generate(model, [0], 1, generator=generator)[0] for _ in range(4000)]
    expected = torch.softmax(torch.tensor([0.0, 5.0, 0.0, 0.0]) / 1.0, dim=0)
    found = torch.bincount(torch.tensor(drawn), minlength=4) / len(drawn)
    assert (found - expected).abs().max() < 0.01


def test_generate_appends_until_the_end_token():
    assert generate(Counting(), [3], 20, temperature=0) == [(4 + i) % 10 for i in range(20)]
    assert generate(Counting(), [3], 20, temperature=0, end_token=7) == [4, 5, 6]
    assert generate(Counting(), [3], 0) == []


def test_reads_at_most_the_models_length():
    model = Counting()
    generate(model, [1, 2], 4, temperature=0, max_length=3)
    assert model.read == [[1, 2], [1, 2, 3], [2, 3, 4], [3, 4, 5]]


def test_the_seed_decides_and_torchs_own_generator_is_left_alone():
    before = torch.get_rng_state()
    texts = [
        generate(
            Counting(), [0], 30, temperature=3.0, generator=torch.Generator().manual_seed(seed)
        )
        for seed in (1, 1, 2)
    ]
    assert texts[0] == texts[1] != texts[2]
    assert torch.equal(before, torch.get_rng_state())


@pytest.mark.parametrize(
    "options", [{"temperature": -1}, {"top_k": 0}, {"top_p": 0.0}, {"top_p": 1.5}]
)
def test_impossible_options_are_named(options):
    with pytest.raises(InputError, match=next(iter(options))):
        next_token_probabilities(LOGITS, **options)


def test_an_empty_prompt_is_named():
    with pytest.raises(InputError, match="prompt is empty"):
        generate(Counting(), [], 3)


@pytest.mark.skipif(not is_cached("stories15M"), reason="python -m minitrain assets stories15M")
def test_a_pretrained_model_tells_its_story():
    model, tokenizer = load_llama2c(fetch("stories15M", progress=False))
    prompt = tokenizer.encode("Once upon a time")
    told = generate(model, prompt, 18, temperature=0, end_token=tokenizer.bos_id, max_length=256)
    assert tokenizer.decode(prompt + told) == (
        "Once upon a time, there was a little girl named Lily. She loved to play outside in the sun"
    )
