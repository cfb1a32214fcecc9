"""Contamination: test-set text that has slipped into the training text, as shared 13-grams.

A document that shares any run of n words with a test text is contaminated: 13 words in a row are no
coincidence, while fewer often are. Case and punctuation are ignored. A test text of fewer than n
words is searched for as a whole, down to `least` words; shorter ones are only listed in
`too_short`, since a match would prove nothing.
Source: Brown et al. 2020 (GPT-3, 2005.14165), appendix C: 13 words, 8 at the least.
Cost: 8 bytes per run of the test set; O(words) of the text searched.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np

from minitrain.data.preparation.deduplication.words import WORD, plain_bytes, shingle_hashes
from minitrain.data.preparation.filters.rules import Rule
from minitrain.errors import InputError, check_list

SOURCE = "13-gram overlap, Brown et al. 2020 (2005.14165), appendix C"


class TestSet:
    """The runs of words that must not occur in training text."""

    __test__ = False  # pytest would collect it

    def __init__(self, texts: Sequence[str], width: int = 13, least: int = 8) -> None:
        check_list("texts", texts)
        if not 1 <= least <= width:
            raise InputError(f"runs of {width} words, {least} at the least: use 13 and 8")
        counts = [len(WORD.findall(plain_bytes(text))) for text in texts]
        self.too_short = [index for index, count in enumerate(counts) if count < least]
        by_width: dict[int, list[str]] = {}
        for text, count in zip(texts, counts):
            if count >= least:
                by_width.setdefault(min(count, width), []).append(text)
        if not by_width:
            raise InputError(
                f"none of the {len(texts)} test texts has {least} words: give longer ones"
            )
        self.runs = {w: np.unique(shingle_hashes(own, w)[0]) for w, own in by_width.items()}

    def overlaps(self, documents: Sequence[str]) -> np.ndarray:
        """(N,) int64: how many runs each document shares with the test set."""
        total = np.zeros(len(documents), np.int64)
        for width, runs in self.runs.items():
            hashes, bounds = shingle_hashes(documents, width)
            places = np.searchsorted(runs, hashes).clip(max=len(runs) - 1)
            found = np.concatenate(([0], np.cumsum(runs[places] == hashes)))
            total += np.diff(found[bounds])
        return total

    def rule(self) -> Rule:
        """A rule that drops documents sharing any run with the test set."""
        return Rule(partial(shares_a_run_with_the_test_set, test_set=self), SOURCE)


def shares_a_run_with_the_test_set(text: str, test_set: TestSet) -> bool:
    return bool(test_set.overlaps([text])[0])
