"""What a request asks for is judged when it is asked, whatever kind of number it is."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from minitrain.errors import InputError
from minitrain.inference.engine.engine import Engine
from minitrain.inference.engine.request import as_tokens
from minitrain.inference.parameters import SamplingParameters
from minitrain.inference.sampling import next_token_probabilities

from .engine.test_engine import MODEL

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
    for prompt in (
        (3, 4),
        range(3, 5),
        np.array([3, 4], np.uint8),
        torch.tensor([3, 4]),
        iter([3, 4]),
    ):
        assert as_tokens(prompt) == [3, 4]


@pytest.mark.parametrize(
    "options, words",
    [
        ({"id": 5}, "id is 5"),
        ({"adapter": ["a"]}, "adapter is"),
        ({"parameters": {"top_k": 3}}, "give SamplingParameters"),
    ],
)
def test_the_rest_of_a_request_is_judged_too(options, words):
    with pytest.raises(InputError, match=words):
        Engine(MODEL, 9).add([1], **options)
