"""Sampling beside that of transformers; what a request asks for is judged when it is asked."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from transformers import (
    DynamicCache,
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from minitrain.bench.training import as_llama
from minitrain.data.assets.fetch import fetch, is_cached
from minitrain.errors import InputError
from minitrain.inference.engine.engine import Engine
from minitrain.inference.engine.request import as_tokens
from minitrain.inference.parameters import SamplingParameters
from minitrain.inference.sampling import (
    cut,
    draw,
    generate,
    generate_cached,
    next_token_probabilities,
    penalised,
)
from minitrain.model.config import ModelConfig
from minitrain.model.hub.llama2c import load_llama2c
from minitrain.model.transformer import build

from .engine.test_engine import MODEL


class Counting(nn.Module):
    """Its likeliest next token is the last one plus 1; it notes how much it was given to read."""

    def __init__(self, vocabulary: int = 10):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(1))
        self.vocabulary, self.read = vocabulary, []

    def forward(self, tokens):
        self.read.append(tokens.tolist()[0])
        return 5.0 * nn.functional.one_hot((tokens + 1) % self.vocabulary, self.vocabulary)


def test_generate_appends_until_the_end_token():
    assert generate(Counting(), [3], 20, temperature=0) == [(4 + i) % 10 for i in range(20)]
    assert generate(Counting(), [3], 20, temperature=0, end_token=7) == [4, 5, 6]
    assert generate(Counting(), [3], 0) == []
    with pytest.raises(InputError, match="prompt is empty"):
        generate(Counting(), [], 3)


def test_reads_at_most_the_models_length():
    model = Counting()
    generate(model, [1, 2], 4, temperature=0, max_length=3)
    assert model.read == [[1, 2], [1, 2, 3], [2, 3, 4], [3, 4, 5]]


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


def random_logits(rows: int, vocabulary: int, seed: int) -> torch.Tensor:
    return torch.randn(rows, vocabulary, generator=torch.Generator().manual_seed(seed)) * 3


@settings(max_examples=60, deadline=None)
@given(
    top_k=st.none() | st.integers(1, 30),
    top_p=st.none() | st.floats(0.01, 1.0),
    min_p=st.none() | st.floats(0.01, 1.0),
    seed=st.integers(0, 999),
)
def test_cuts_are_transformers_one_after_the_other(top_k, top_p, min_p, seed):
    logits = random_logits(4, 25, seed)
    theirs = logits.clone()
    if top_k is not None:
        theirs = TopKLogitsWarper(top_k)(None, theirs)
    if top_p is not None:
        theirs = TopPLogitsWarper(top_p)(None, theirs)
    if min_p is not None:
        theirs = MinPLogitsWarper(min_p)(None, theirs)
    assert torch.equal(cut(logits, top_k, top_p, min_p), theirs)


@pytest.mark.parametrize("top_k", [None, 3, 99])
@pytest.mark.parametrize("top_p", [None, 0.5, 1.0, 1e-9])
def test_cuts_are_the_naive_version(top_k, top_p):
    logits = random_logits(3, 11, 0)
    ours = cut(logits / 0.8, top_k, top_p).softmax(dim=-1)
    for row, naive in zip(ours, logits):
        torch.testing.assert_close(row, next_token_probabilities(naive, 0.8, top_k, top_p))
        assert (next_token_probabilities(torch.zeros(11), 1, top_k) > 0).sum() == min(
            top_k or 11, 11
        )


@pytest.mark.parametrize("penalty", [0.7, 1.3])
def test_the_repetition_penalty_is_transformers(penalty):
    logits, prompt, told = random_logits(1, 20, 4), [3, 5, 3], [7, 7]
    theirs = RepetitionPenaltyLogitsProcessor(penalty)(torch.tensor([prompt + told]), logits)
    ours = penalised(logits[0], prompt, told, SamplingParameters(repetition_penalty=penalty))
    assert torch.equal(ours, theirs[0])


def test_presence_and_frequency_count_the_answer_alone():
    logits = torch.zeros(6)
    parameters = SamplingParameters(presence_penalty=0.5, frequency_penalty=0.25)
    found = penalised(logits, [0, 1], [1, 3, 3], parameters)
    assert found.tolist() == [0, -0.75, 0, -1.0, 0, 0]
    assert penalised(logits, [0, 1], [], parameters).tolist() == [0] * 6
    assert logits.tolist() == [0] * 6  # the model's own are left alone


def test_draws_follow_the_probabilities_and_never_take_what_was_cut():
    logits = torch.tensor([2.0, -torch.inf, 1.0, 0.0, -torch.inf])
    uniforms = torch.rand(20_000, generator=torch.Generator().manual_seed(0))
    drawn = draw(logits.expand(len(uniforms), -1), uniforms)
    found = torch.bincount(drawn, minlength=5) / len(uniforms)
    assert (found - logits.softmax(0)).abs().max() < 0.01
    assert found[1] == found[4] == 0
    edges = torch.tensor([0.0, 1 - 2**-24])
    assert set(draw(logits.expand(2, -1), edges).tolist()) <= {0, 2, 3}
    assert draw(torch.tensor([[-torch.inf, 0.0, -torch.inf]]), torch.zeros(1)).tolist() == [1]


def test_a_draw_does_not_hang_on_rounding():
    """By the sums of probabilities one draw of 200 is another token, and a text of 200 is."""
    chance = torch.Generator().manual_seed(0)
    logits = 3 * torch.randn(500, 32_000, generator=chance)
    rounded = logits + 1e-5 * torch.randn(logits.shape, generator=chance)
    uniforms = torch.rand(500, generator=chance)
    assert torch.equal(draw(logits, uniforms), draw(rounded, uniforms))


def test_numbers_that_follow_one_another_draw_apart():
    """Chi-square of pairs of neighbours, and of numbers that differ in their last bit."""
    uniforms = torch.rand(200_000, generator=torch.Generator().manual_seed(0))
    neighbours = torch.arange(200_000) * 2**-24
    for numbers in (uniforms, neighbours):
        first, second = draw(torch.zeros(len(numbers), 4), numbers).view(-1, 2).unbind(1)
        counts = torch.bincount(4 * first + second, minlength=16).double()
        expected = counts.sum() / 16
        assert ((counts - expected) ** 2 / expected).sum() < 37.7  # 15 degrees: once in 1,000


# What a request asks for is judged when it is asked, whatever kind of number it is


NO_WHOLE = (0, -1, 2.5, 3.0, True, "3", math.nan, [3])
NO_NUMBER = (math.nan, math.inf, -math.inf, True, "1", [1.0], 10**400, torch.tensor(math.nan))
REFUSED = {
    "max_new_tokens": (*NO_WHOLE, None),
    "temperature": (*NO_NUMBER, -0.1, None),
    "top_k": NO_WHOLE,
    "top_p": (*NO_NUMBER, 0, -0.5, 1.1),
    "min_p": (*NO_NUMBER, 0, 1.1),
    "repetition_penalty": (*NO_NUMBER, 0, -1),
    "presence_penalty": (*NO_NUMBER, 2.1, None),
    "frequency_penalty": (*NO_NUMBER, -2.1, None),
    "stop": ("", ("a", ""), ("a", 5), 5, b"a", (None,)),
    "stop_tokens": (5, "5", b"5", (5.0,), (True,), ("5",), torch.tensor(5), [[5]]),
    "ignore_end": (1, None, "no"),
    "log_probabilities": (-1, 1.5, True, "1"),
    "seed": (1.5, None, "0", True, 2**64, -(2**63) - 1),
}
CASES = [(name, value) for name, values in REFUSED.items() for value in values]


@pytest.mark.parametrize("name, value", CASES)
def test_what_is_wrong_is_refused_by_its_name(name, value):
    with pytest.raises(InputError, match=rf"^{name} is .*; it must be "):
        SamplingParameters(**{name: value})


def test_numbers_of_numpy_and_torch_are_numbers():
    given = SamplingParameters(
        np.int64(5), torch.tensor(0.5), np.uint8(3), np.float32(0.5), stop="x", seed=torch.tensor(7),
        stop_tokens=torch.tensor([1, 2]),
    )  # fmt: skip
    assert given == SamplingParameters(5, 0.5, 3, 0.5, stop=("x",), seed=7, stop_tokens=(1, 2))
    assert all(type(value) in (int, float) for value in (given.top_k, given.top_p, given.seed))
    assert SamplingParameters(stop=["a", "b"], stop_tokens=[3]).stop == ("a", "b")
    for seed in (-1, -(2**63), 2**64 - 1):
        asked = SamplingParameters(3, 1.0, seed=seed)
        assert len(Engine(MODEL, 9).generate([[1]], asked, n=2)) == 2


def test_the_naive_version_judges_alike():
    with pytest.raises(InputError, match=r"top_k is 2\.5"):
        next_token_probabilities(torch.zeros(5), top_k=2.5)


@pytest.mark.parametrize(
    "prompt",
    ["123", b"12", ["1", "2"], [1.7, 2], [True], {3: 1}, {3, 1}, 5, None, [None], [[1], [2]],
     np.array([1.0]), np.array([[1, 2]]), torch.tensor([[1], [2]]), torch.tensor([True]),
     torch.tensor([1.5]), torch.tensor(3)],
)  # fmt: skip
def test_what_is_no_list_of_tokens_is_no_prompt(prompt):
    with pytest.raises(InputError, match="give a list of token numbers"):
        Engine(MODEL, 9).add(prompt)


def test_any_row_of_whole_numbers_is_a_prompt():
    for prompt in (range(3, 5), np.array([3, 4], np.uint8), torch.tensor([3, 4]), iter([3, 4])):
        assert as_tokens(prompt) == [3, 4]


def test_the_rest_of_a_request_is_judged_too():
    for options, words in (
        ({"id": 5}, "id is 5"),
        ({"adapter": ["a"]}, "adapter is"),
        ({"parameters": {"top_k": 3}}, "give SamplingParameters"),
    ):
        with pytest.raises(InputError, match=words):
            Engine(MODEL, 9).add([1], **options)
