"""Repeated passages are those of brute force; planted ones are found to the character."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minitrain.data.preparation.deduplication import passages
from minitrain.data.preparation.deduplication.passages import cut_repeats, window_hashes
from minitrain.errors import InputError

from .test_near import as_text, drawn_documents

LETTERS = st.text("ab日\ud800", max_size=60)


def cut_naive(documents: list[str], length: int) -> list[str]:
    """By a set of all windows."""
    seen: set[str] = set()
    found = []
    for text in documents:
        keep = np.ones(len(text), bool)
        for start in range(len(text) - length + 1):
            window = text[start : start + length]
            keep[start : start + length] &= window not in seen
            seen.add(window)
        found.append("".join(sign for sign, own in zip(text, keep) if own))
    return found


@pytest.mark.parametrize("part", [4, passages.PART])
def test_repeats_are_those_of_brute_force(monkeypatch, part):
    """A few windows at a time, too: else one part holds all of a test."""
    monkeypatch.setattr(passages, "PART", part)

    @given(st.lists(LETTERS, max_size=6), st.integers(1, 20))
    @settings(max_examples=200, deadline=None)
    def check(documents, length):
        assert cut_repeats(documents, length) == cut_naive(documents, length)

    check()


@given(st.lists(st.integers(0, 2), max_size=60), st.integers(1, 20))
@settings(max_examples=100, deadline=None)
def test_windows_have_one_hash_where_they_are_equal(symbols, length):
    hashes = window_hashes(np.array(symbols, np.int64), length).tolist()
    windows = [tuple(symbols[i : i + length]) for i in range(len(symbols) - length + 1)]
    assert len(hashes) == len(windows)
    assert len(set(zip(hashes, windows))) == len(set(hashes)) == len(set(windows))


def test_windows_do_not_cross_documents():
    """The plausible wrong version, one long text, would cut "bc" here."""
    assert cut_repeats(["ab", "cd", "abcd"], 2) == ["ab", "cd", ""]
    assert cut_repeats(["ab", "cd", "xbcx"], 2) == ["ab", "cd", "xbcx"]


def test_planted_passages_are_found_to_the_character():
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


def test_no_length_is_refused():
    with pytest.raises(InputError, match="200 is usual"):
        cut_repeats(["a"], 0)
