"""Suffix arrays and repeated passages, equal to brute force on small texts."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minitrain.data.preparation.deduplication import substring as substring_module
from minitrain.data.preparation.deduplication import suffix_array as suffix_array_module
from minitrain.data.preparation.deduplication.substring import cut_repeats, repeats, repeats_naive
from minitrain.data.preparation.deduplication.suffix_array import (
    suffix_array,
    suffix_array_naive,
    window_names,
)
from minitrain.errors import InputError

from .planted import as_text, drawn_documents

SYMBOLS = st.lists(st.integers(0, 2), max_size=60)


@given(SYMBOLS, st.sampled_from([1, 1000, 10**9]))
@settings(max_examples=200, deadline=None)
def test_the_suffix_array_is_that_of_sorting(symbols, scale):
    symbols = [scale * symbol for symbol in symbols]
    np.testing.assert_array_equal(suffix_array(symbols), suffix_array_naive(symbols))


@pytest.fixture
def small_parts(monkeypatch):
    """Four suffixes at a time, and ranks after two symbols: else one part holds all of a test."""
    monkeypatch.setattr(suffix_array_module, "PART", 4)
    monkeypatch.setattr(suffix_array_module, "READ", 2)
    monkeypatch.setattr(substring_module, "PART", 4)


@pytest.mark.parametrize("kinds", [2, 3, 300, 70_000, 3_000_000])
def test_in_parts_it_is_the_same(kinds, small_parts):
    """Alphabets of one byte, of two, and of more than the table holds."""
    drawn = np.random.default_rng(kinds)
    for _ in range(12):
        symbols = drawn.integers(0, kinds, drawn.integers(1, 60))
        symbols = np.concatenate([symbols, symbols[: len(symbols) // 2], symbols])
        np.testing.assert_array_equal(suffix_array(symbols), suffix_array_naive(symbols))
        documents = np.split(symbols, np.sort(drawn.integers(0, len(symbols), 3)))
        for length in (1, 2, 3, 7, 20):
            for own, naive in zip(repeats(documents, length), repeats_naive(documents, length)):
                np.testing.assert_array_equal(own, naive)


def test_banana():
    assert suffix_array(np.frombuffer(b"banana", np.uint8)).tolist() == [5, 3, 1, 0, 4, 2]
    assert suffix_array([]).tolist() == []
    assert suffix_array([7] * 300).tolist() == list(range(299, -1, -1))


@given(SYMBOLS, st.integers(1, 20))
@settings(max_examples=200, deadline=None)
def test_windows_have_one_name_where_they_are_equal(symbols, length):
    names = window_names(symbols, length)
    windows = [tuple(symbols[i : i + length]) for i in range(len(symbols) - length + 1)]
    for i, one in enumerate(windows):
        for j, other in enumerate(windows):
            assert (names[i] == names[j]) == (one == other)


@given(st.lists(SYMBOLS, max_size=6), st.integers(1, 12))
@settings(max_examples=200, deadline=None)
def test_repeats_are_those_of_brute_force(documents, length):
    found = repeats(documents, length)
    assert len(found) == len(documents)
    for own, naive in zip(found, repeats_naive(documents, length)):
        np.testing.assert_array_equal(own, naive)


def test_windows_do_not_cross_documents():
    """The plausible wrong version, one long text, would cut "bc" here."""
    assert cut_repeats(["ab", "cd", "abcd"], 2) == ["ab", "cd", ""]
    assert cut_repeats(["ab", "cd", "xbcx"], 2) == ["ab", "cd", "xbcx"]


def test_planted_passages_are_found_to_the_sign():
    documents = [as_text(words) for words in drawn_documents(40, 80, seed=4)]
    passage = as_text(drawn_documents(1, 40, seed=5)[0])
    own = [(chr(0x4E00 + i), chr(0x5E00 + i)) for i in range(40)]  # neighbours that nobody shares
    around = [
        (text[:99] + before, after + text[99:]) for text, (before, after) in zip(documents, own)
    ]
    planted = [passage.join(pair) for pair in around]
    cut = cut_repeats(planted, length=100)
    assert cut[0] == planted[0], "the first stays"
    assert cut[1:] == ["".join(pair) for pair in around[1:]]
    assert cut_repeats(documents, length=100) == documents
    assert cut_repeats(planted, length=len(passage) + 1) == planted


def test_signs_are_whole():
    passage = "Über 日本語 🙂 " * 3
    assert cut_repeats([passage + "a", "b" + passage], len(passage)) == [passage + "a", "b"]


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: cut_repeats(["a"], 0), "200 is usual"),
        (lambda: window_names([1, 2], 0), "use 1 or more"),
        (lambda: suffix_array([1, -1]), "use 0 or more"),
        (lambda: suffix_array([0.5]), "one row of integers"),
    ],
)
def test_wrong_arguments_are_told(call, says):
    with pytest.raises(InputError, match=says):
        call()
