"""Contamination: none missed of what was planted, none found where nothing was."""

from __future__ import annotations

import random

import numpy as np
import pytest

from minitrain.data.preparation.contamination import TestSet
from minitrain.errors import InputError

WORDS = [f"word{i}" for i in range(5000)]


def text(rng: random.Random, count: int) -> list[str]:
    return rng.choices(WORDS, k=count)


def test_none_missed_and_none_by_chance():
    rng = random.Random(0)
    tests = [text(rng, rng.choice((8, 11, 13, 40))) for _ in range(200)]
    documents, planted = [], []
    for index in range(1000):
        words = text(rng, rng.randint(20, 200))
        if index % 4 == 0:
            whole = rng.choice(tests)
            start = rng.randrange(len(whole) - min(13, len(whole)) + 1)
            run = [word.upper() + "," for word in whole[start : start + 13]]
            at = rng.randrange(len(words) + 1)
            words[at:at] = run
        documents.append(" ".join(words))
        planted.append(index % 4 == 0)
    overlaps = TestSet([" ".join(words) for words in tests]).overlaps(documents)
    np.testing.assert_array_equal(overlaps > 0, planted)
    assert overlaps.max() == 1, "one run was planted in each"


def test_twelve_words_are_a_coincidence_and_thirteen_are_none():
    rng = random.Random(1)
    words = text(rng, 30)
    test_set = TestSet([" ".join(words)])
    for count, expected in ((12, 0), (13, 1), (20, 8)):
        document = " ".join(text(rng, 10) + words[:count] + text(rng, 10))
        assert test_set.overlaps([document]).tolist() == [expected]
        assert test_set.rule().fails(document) == (expected > 0)


def test_what_is_too_short_is_said():
    test_set = TestSet(["one two three", "a b c d e f g h", ""])
    assert test_set.too_short == [0, 2]
    assert test_set.overlaps(
        ["one two three", "x a b c d e f g h y", "a b c d e f g"]
    ).tolist() == [
        0,
        1,
        0,
    ]
    with pytest.raises(InputError, match="none of the 1 test texts"):
        TestSet(["too short"])
    with pytest.raises(InputError, match="use 13 and 8"):
        TestSet(["a"], width=5, least=6)
