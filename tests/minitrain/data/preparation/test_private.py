"""Private data: precision and recall on lines labelled by hand; the checks against their standards."""

from __future__ import annotations

import random
import re
import time
from pathlib import Path

import numpy as np
import pytest

from minitrain.data.preparation.contamination import TestSet
from minitrain.data.preparation.private import Found, find_private, iban, luhn, mask
from minitrain.errors import InputError

LABELLED = Path(__file__).with_name("private_labelled.txt").read_text(encoding="utf-8")
LABEL = re.compile(r"\[\[([A-Z]+):(.*?)\]\]")


def labelled(line: str) -> tuple[str, set[Found]]:
    """The text without its marks, and what they mark."""
    text, found, done = "", set(), 0
    for label in LABEL.finditer(line):
        text += line[done : label.start()]
        found.add(Found(label[1], len(text), len(text) + len(label[2])))
        text, done = text + label[2], label.end()
    return text + line[done:], found


def counts(kinds: set[str] | None = None) -> tuple[int, int, int]:
    """Right, wrong and missed, to the sign."""
    right = wrong = missed = 0
    for line in LABELLED.splitlines():
        text, expected = labelled(line)
        found = set(find_private(text))
        if kinds:
            expected, found = ({f for f in each if f.kind in kinds} for each in (expected, found))
        right += len(found & expected)
        wrong += len(found - expected)
        missed += len(expected - found)
    return right, wrong, missed


def test_precision_and_recall_on_the_labelled_lines():
    right, wrong, missed = counts()
    assert right + missed >= 30, "there is something to find"
    assert right / (right + wrong) >= 0.95, f"{wrong} wrong"
    assert right / (right + missed) >= 0.95, f"{missed} missed"


@pytest.mark.parametrize("kind", ["EMAIL", "PHONE", "IP", "CARD", "IBAN", "KEY"])
def test_every_kind_is_found(kind):
    right, wrong, missed = counts({kind})
    assert right >= 4 and missed + wrong <= 1


def test_without_its_check_a_pattern_takes_more(monkeypatch):
    """The plausible wrong version: any 16 digits are a card, any four numbers an address."""
    from minitrain.data.preparation import private

    bare = tuple(private.Kind(kind.name, kind.pattern) for kind in private.KINDS)
    monkeypatch.setattr(private, "KINDS", bare)
    right, wrong, _ = counts()
    assert right / (right + wrong) < 0.9


def test_mask():
    text = "Ann <ann@example.org>, +49 30 1234567, 4111 1111 1111 1111."
    assert mask(text) == "Ann <<EMAIL>>, <PHONE>, <CARD>."
    assert mask(mask(text)) == mask(text)
    for nothing in ("", "\n", "plain words", "\ud800"):
        assert mask(nothing) == nothing
    pem = "-----BEGIN RSA PRIVATE KEY-----\nMIIE\nab12\n-----END RSA PRIVATE KEY-----"
    assert mask(f"a {pem} b") == "a <KEY> b"


def test_every_single_wrong_digit_fails_the_checks():
    card, account = "4012888888881881", "GB29NWBK60161331926819"
    assert luhn(card) and iban(account) and not luhn("")
    for place in range(16):
        for digit in "0123456789":
            changed = card[:place] + digit + card[place + 1 :]
            assert luhn(changed) == (changed == card)
    for place in (2, 3, *range(8, 22)):
        for digit in "0123456789":
            changed = account[:place] + digit + account[place + 1 :]
            assert iban(changed) == (changed == account)


def test_long_texts_without_ends_take_linear_time():
    rng = random.Random(0)
    for unit in ("a", "1", "1.", "1 ", "a@", "ab12 ", "+1", "0:", "password=", "AB12"):
        text = unit * (200_000 // len(unit))
        start = time.process_time()
        find_private(text)
        assert time.process_time() - start < 5, unit
    assert find_private("".join(rng.choices("ab .", k=1000))) == []


# --- a test set ---


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
    documents = ["one two three", "x a b c d e f g h y", "a b c d e f g"]
    assert test_set.overlaps(documents).tolist() == [0, 1, 0]
    with pytest.raises(InputError, match="none of the 1 test texts"):
        TestSet(["too short"])
    with pytest.raises(InputError, match="use 13 and 8"):
        TestSet(["a"], width=5, least=6)
