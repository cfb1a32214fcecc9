"""Near duplicates: the S-curve is met within two points, on drawn and on planted pairs."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minitrain.data.preparation.deduplication import minhash as minhash_file
from minitrain.data.preparation.deduplication.bands import Bands, choose_bands
from minitrain.data.preparation.deduplication.clusters import clusters
from minitrain.data.preparation.deduplication.minhash import (
    NO_SHINGLE,
    minhash,
    minhash_naive,
    similarity,
)
from minitrain.data.preparation.deduplication.near import (
    candidate_pairs,
    near_duplicates,
    near_duplicates_naive,
)
from minitrain.data.preparation.deduplication.words import jaccard, shingle_hashes, shingles
from minitrain.errors import InputError

from .planted import as_text, drawn_documents, edited

TEXTS = st.lists(st.text(alphabet="aB9 .é。日本\u2019\n", max_size=40), max_size=8)


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
    equal = [shingle_hashes([text], 2)[0].tolist() for text in ("a bc", "A, bc", "ab c")]
    assert equal[0] == equal[1] != equal[2]


def test_the_order_of_words_counts():
    one, other = (shingle_hashes([text], 2)[0].tolist() for text in ("a b", "b a"))
    assert one != other


def test_signatures_do_not_depend_on_the_groups(monkeypatch):
    texts = [as_text(words) for words in drawn_documents(30, 20, seed=1)] + ["", "x", "?"]
    whole = minhash(texts, hashes=16)
    np.testing.assert_array_equal(whole, minhash_naive(texts, hashes=16))
    for size in (1, 300, 10**9):
        monkeypatch.setattr(minhash_file, "GROUP_BYTES", size)
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


def test_agreement_is_jaccards_similarity(pairs):
    signatures, true = pairs
    error = similarity(signatures[:4000], signatures[4000:]) - true
    assert abs(error.mean()) < 0.002, "no bias"
    expected = np.sqrt((true * (1 - true) / 126).mean())
    assert np.sqrt((error**2).mean()) == pytest.approx(expected, rel=0.05), "binomial spread"


@pytest.mark.parametrize("split", [Bands(14, 8), Bands(9, 14), Bands(25, 5), Bands(1, 3)])
def test_the_s_curve_is_met_within_two_points(pairs, split):
    signatures, true = pairs
    expected = split.meeting_probability(true)
    met = met_pairs(signatures, split)
    assert abs(met.mean() - expected.mean()) < 0.02
    for low in np.arange(0.0, 1.0, 0.25):
        own = (low <= true) & (true < low + 0.25)
        noise = 3 * np.sqrt((expected[own] * (1 - expected[own])).sum()) / max(1, own.sum())
        assert abs(met[own].mean() - expected[own].mean()) < max(0.02, noise)


@pytest.mark.parametrize("threshold", [0.4, 0.6, 0.75])
def test_recall_and_precision_are_those_of_the_curve(pairs, threshold):
    signatures, true = pairs
    split, alike = choose_bands(threshold, 126), true >= threshold
    expected, met = split.meeting_probability(true), met_pairs(signatures, split)
    assert abs(met[alike].mean() - expected[alike].mean()) < 0.02, "recall"
    precision = expected[alike].sum() / expected.sum()
    assert abs((met & alike).sum() / met.sum() - precision) < 0.02


def met_pairs(signatures: np.ndarray, split: Bands) -> np.ndarray:
    found = clusters(candidate_pairs(signatures, split), len(signatures))
    return found[:4000] == found[4000:]


def test_hash_functions_that_are_one_miss_the_curve(pairs):
    """The plausible wrong version: K hash functions that differ by a shift alone."""
    signatures, true = pairs
    split = Bands(14, 8)
    alike = np.repeat(signatures[:, :14], 8, axis=1)  # of each band the rows agree together
    gap = met_pairs(alike, split).mean() - split.meeting_probability(true).mean()
    assert gap > 0.1


@pytest.mark.parametrize("share", [0.0, 0.05, 0.15, 0.3])
def test_planted_copies_are_found_as_the_curve_says(share):
    """Of 1,000 documents an exact copy, and one with 5, 15 and 30% of the words replaced."""
    rng = np.random.default_rng(2)
    originals = drawn_documents(1000, 150, seed=3)
    copies = [edited(document, share, rng) for document in originals]
    texts = [as_text(document) for document in originals + copies]
    true = [jaccard(shingles(a), shingles(b)) for a, b in zip(texts[:1000], texts[1000:])]
    firsts = near_duplicates(texts, threshold=0.6)
    assert (firsts[:1000] == np.arange(1000)).all(), "no two originals meet"
    expected = choose_bands(0.6, 128).meeting_probability(np.array(true)).mean()
    assert abs((firsts[1000:] == np.arange(1000)).mean() - expected) < 0.02
    assert share or expected == 1


@pytest.mark.parametrize("seed", range(3))
def test_far_from_the_threshold_all_pairs_agree_with_the_naive_version(seed):
    rng = np.random.default_rng(seed)
    originals = drawn_documents(25, 80, seed)
    texts = [as_text(document) for document in originals]
    texts += [text + " and one more" for text in texts[::2]]
    texts += [as_text(edited(document, 0.5, rng)) for document in originals] + ["", "", "..", "ab"]
    naive = near_duplicates_naive(texts, threshold=0.7)
    np.testing.assert_array_equal(near_duplicates(texts, threshold=0.7), naive)
    assert (naive[-4:] == np.arange(len(texts))[-4:]).all(), "without words: like no other"


def test_a_document_without_words_is_no_duplicate():
    assert near_duplicates(["", "?!", "a b"]).tolist() == [0, 1, 2]
    assert near_duplicates([]).tolist() == []


def test_the_split_for_a_threshold():
    """The curve passes a half near the threshold; what a miss weighs moves it."""
    for threshold in (0.3, 0.5, 0.75, 0.9):
        split = choose_bands(threshold, 128)
        assert split.hashes <= 128
        similarities = np.linspace(0, 1, 100_001)
        half = similarities[np.searchsorted(split.meeting_probability(similarities), 0.5)]
        assert abs(half - threshold) < 0.05
    careful, strict = choose_bands(0.7, 128, 0.9), choose_bands(0.7, 128, 0.1)
    assert careful.meeting_probability(0.6) > strict.meeting_probability(0.6)
    assert Bands(14, 8).meeting_probability(0.75) == pytest.approx(0.772, abs=5e-4)


@pytest.mark.parametrize("miss_weight", [0.1, 0.5, 0.9])
def test_the_split_is_datasketchs(miss_weight):
    lsh = pytest.importorskip("datasketch.lsh")
    for threshold in (0.3, 0.5, 0.7, 0.75, 0.9):
        split = choose_bands(threshold, 64, miss_weight)
        assert (split.bands, split.rows) == lsh._optimal_param(
            threshold, 64, 1 - miss_weight, miss_weight
        )


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: choose_bands(1.0), "between 0 and 1"),
        (lambda: choose_bands(0.5, 0), "use 1 or more"),
        (lambda: Bands(0, 3), "use 1 or more of each"),
        (lambda: minhash(["a"], hashes=0), "use 1 hash or more"),
        (lambda: shingle_hashes(["a"], 0), "5 is usual"),
        (lambda: candidate_pairs(np.zeros((2, 7), np.uint32), Bands(2, 4)), "8 or more"),
    ],
)
def test_wrong_arguments_are_told(call, says):
    with pytest.raises(InputError, match=says):
        call()
