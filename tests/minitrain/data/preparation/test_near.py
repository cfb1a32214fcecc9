"""Duplicates: equal ones by hand, near ones as the S-curve says, passages as brute force finds them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minitrain.data import plain
from minitrain.data.preparation.deduplication import near, passages
from minitrain.data.preparation.deduplication.exact import digest, exact_duplicates, normal_form
from minitrain.data.preparation.deduplication.near import (
    NO_SHINGLE,
    Bands,
    band_keys,
    choose_bands,
    clusters,
    minhash,
    near_duplicates,
    near_duplicates_naive,
    pairs_of_keys,
)
from minitrain.data.preparation.deduplication.passages import cut_repeats, window_hashes
from minitrain.data.preparation.deduplication.words import jaccard, shingle_hashes, shingles
from minitrain.errors import InputError

VOCABULARY = 20_000
TEXTS = st.lists(st.text(alphabet="aB9 .é。日本\u2019\n", max_size=40), max_size=8)


def drawn_documents(count: int, words: int, seed: int) -> list[list[int]]:
    return np.random.default_rng(seed).integers(0, VOCABULARY, (count, words)).tolist()


def edited(document: list[int], share: float, rng: np.random.Generator) -> list[int]:
    """Each word replaced with probability `share`."""
    return [int(rng.integers(VOCABULARY)) if rng.random() < share else word for word in document]


def as_text(document: list[int]) -> str:
    return " ".join(f"w{word}" for word in document)


# --- exact duplicates ---


def test_equal_documents_by_hand():
    texts = ["a b", "c", "a  b\n", "A b", "c", "", " \n", "a b"]
    assert exact_duplicates(texts).tolist() == [0, 1, 0, 3, 1, 5, 5, 0]
    assert exact_duplicates(iter([])).tolist() == []


def test_the_normal_form_and_its_digest():
    assert normal_form("caf\u0065\u0301\u00a0 x\n") == "caf\u00e9 x"
    assert digest("e\u0301") == digest("\u00e9") != digest("e")
    assert digest("Word") != digest("word"), "case is for near duplicates"
    assert digest("ab c") != digest("a bc")
    assert len(digest("\ud800")) == 16, "a lone surrogate is text, too"
    assert digest("the same text").hex() == "877d7fbf8dea61a424689d448012d414", "on every machine"


# --- words and shingles ---


@given(TEXTS, st.integers(1, 6))
@settings(max_examples=150, deadline=None)
def test_hashed_shingles_are_the_shingles(texts, width):
    hashes, bounds = shingle_hashes(texts, width)
    number_of: dict[tuple, int] = {}
    for index, text in enumerate(texts):
        own = hashes[bounds[index] : bounds[index + 1]].tolist()
        assert len(set(own)) == len(shingles(text, width))
        if len(own) == 1:
            (only,) = shingles(text, width)
            assert number_of.setdefault(only, own[0]) == own[0], "the same one, wherever it is"


def test_words_by_hand():
    assert shingles("The cat, the CAT!", 2) == {(b"the", b"cat"), (b"cat", b"the")}
    assert shingles("one two", 5) == {(b"one", b"two")}
    assert shingles(" … !? ", 5) == set()
    assert len(shingles("日本語", 1)) == 3
    assert shingles("it\u2019s", 1) == {(b"it",), (b"s",)}
    a, same, other, back = (
        shingle_hashes([text], 2)[0].tolist() for text in ("a bc", "A, bc", "ab c", "bc a")
    )
    assert a == same and a not in (other, back), "the order of words counts"


# --- signatures, bands, clusters ---


def test_signatures_do_not_depend_on_the_groups(monkeypatch):
    texts = [as_text(words) for words in drawn_documents(30, 20, seed=1)] + ["", "x", "?"]
    whole = minhash(texts, hashes=16)
    for size in (1, 300, 10**9):
        monkeypatch.setattr(near, "GROUP_CHARACTERS", size)
        np.testing.assert_array_equal(whole, minhash(iter(texts), hashes=16))
    assert (whole[30] == NO_SHINGLE).all() and (whole[32] == NO_SHINGLE).all()
    assert minhash([], 16).shape == (0, 16)
    assert (minhash(texts, 16, seed=1)[:30] != whole[:30]).mean() > 0.99


@pytest.fixture(scope="module")
def pairs():
    """4,000 documents and an edited copy of each, with their true similarities."""
    rng = np.random.default_rng(5)
    originals = drawn_documents(4000, 60, seed=6)
    copies = [edited(document, rng.uniform(0, 0.25), rng) for document in originals]
    texts = [as_text(document) for document in originals + copies]
    true = [jaccard(shingles(a), shingles(b)) for a, b in zip(texts[:4000], texts[4000:])]
    return minhash(texts, hashes=126), np.array(true)


def met_pairs(signatures: np.ndarray, split: Bands) -> np.ndarray:
    found = clusters(pairs_of_keys(band_keys(signatures, split)), len(signatures))
    return found[:4000] == found[4000:]


@pytest.mark.parametrize("split", [Bands(14, 8), Bands(1, 3)])
def test_the_s_curve_is_met_within_two_points(pairs, split):
    signatures, true = pairs
    expected, met = split.meeting_probability(true), met_pairs(signatures, split)
    assert abs(met.mean() - expected.mean()) < 0.02
    for low in np.arange(0.0, 1.0, 0.25):
        own = (low <= true) & (true < low + 0.25)
        noise = 3 * np.sqrt((expected[own] * (1 - expected[own])).sum()) / max(1, own.sum())
        assert abs(met[own].mean() - expected[own].mean()) < max(0.02, noise)


def test_hash_functions_that_are_one_miss_the_curve(pairs):
    """The plausible wrong version: K hash functions that differ by a shift alone."""
    signatures, true = pairs
    split = Bands(14, 8)
    alike = np.repeat(signatures[:, :14], 8, axis=1)  # of each band the rows agree together
    gap = met_pairs(alike, split).mean() - split.meeting_probability(true).mean()
    assert gap > 0.1


@pytest.mark.parametrize("share", [0.0, 0.15])
def test_planted_copies_are_found_as_the_curve_says(share):
    """Of 1,000 documents an exact copy, and one with 15% of the words replaced."""
    rng = np.random.default_rng(2)
    originals = drawn_documents(1000, 150, seed=3)
    copies = [edited(document, share, rng) for document in originals]
    texts = [as_text(document) for document in originals + copies]
    true = [jaccard(shingles(a), shingles(b)) for a, b in zip(texts[:1000], texts[1000:])]
    firsts = near_duplicates(texts, threshold=0.6)
    assert (firsts[:1000] == np.arange(1000)).all(), "no two originals meet"
    expected = choose_bands(0.6).meeting_probability(np.array(true)).mean()
    assert abs((firsts[1000:] == np.arange(1000)).mean() - expected) < 0.02
    assert share or expected == 1


@pytest.mark.parametrize("seed", range(2))
def test_far_from_the_threshold_all_pairs_agree_with_the_naive_version(seed):
    rng = np.random.default_rng(seed)
    originals = drawn_documents(25, 80, seed)
    texts = [as_text(document) for document in originals]
    texts += [text + " and one more" for text in texts[::2]]
    texts += [as_text(edited(document, 0.5, rng)) for document in originals] + ["", "", "..", "ab"]
    naive = near_duplicates_naive(texts, threshold=0.7)
    np.testing.assert_array_equal(near_duplicates(texts, threshold=0.7), naive)
    assert (naive[-4:] == np.arange(len(texts))[-4:]).all(), "without words: like no other"
    assert near_duplicates([]).tolist() == []


def test_the_split_for_a_threshold():
    """The curve passes a half near the threshold; and the split is datasketch's."""
    lsh = pytest.importorskip("datasketch.lsh")
    for threshold in (0.3, 0.5, 0.75, 0.9):
        own = choose_bands(threshold, 64)
        assert (own.bands, own.rows) == lsh._optimal_param(threshold, 64, 0.5, 0.5)
        split = choose_bands(threshold)
        assert split.hashes <= 128
        similarities = np.linspace(0, 1, 100_001)
        half = similarities[np.searchsorted(split.meeting_probability(similarities), 0.5)]
        assert abs(half - threshold) < 0.05
    assert Bands(14, 8).meeting_probability(0.75) == pytest.approx(0.772, abs=5e-4)


@given(st.integers(1, 40), st.integers(0, 60), st.integers(0, 10**6))
@settings(max_examples=150, deadline=None)
def test_clusters_are_those_of_union_find(count, edges, seed):
    pairs = np.random.default_rng(seed).integers(0, count, (edges, 2))
    assert clusters(pairs, count).tolist() == plain.clusters(pairs.tolist(), count)


def test_wrong_arguments_are_refused():
    for call, says in (
        (lambda: choose_bands(1.0), "between 0 and 1"),
        (lambda: choose_bands(0.5, 0), "whole number, 1 or more"),
        (lambda: minhash(["a"], hashes=0), "use 1 hash or more"),
        (lambda: shingle_hashes(["a"], 0), "5 is usual"),
        (lambda: cut_repeats(["a"], 0), "whole number, 1 or more"),
    ):
        with pytest.raises(InputError, match=says):
            call()


# Repeated passages are those of brute force


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
