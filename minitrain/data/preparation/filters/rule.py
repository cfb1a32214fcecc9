"""A rule of a filter: a small function that says whether a text fails, its name and its source.

    rule = Rule(too_few_words, "Gopher, Rae et al. 2021 (2112.11446), A.1.1")
    rule = Rule(partial(too_few_words, least=20), "mine")
    first_failed([rule, …], text)  ->  "too_few_words", or "" where the text passes all

The first rule that fails is the reason of the drop, so the order of the rules decides who is
counted for what, and never what is dropped.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Rule:
    """`fails(text)` is true where the text is to be dropped."""

    fails: Callable[[str], bool]
    source: str

    @property
    def name(self) -> str:
        return getattr(self.fails, "func", self.fails).__name__  # of a partial, what it is of


def first_failed(rules: Sequence[Rule], text: str) -> str:
    """The name of the first rule that a text fails; empty where it passes all."""
    return next((rule.name for rule in rules if rule.fails(text)), "")


def shares_dropped(rules: Sequence[Rule], texts: Iterable[str]) -> dict[str, float]:
    """For each rule alone, by name, the share of the texts that it would drop."""
    texts = list(texts)
    return {rule.name: sum(map(rule.fails, texts)) / max(1, len(texts)) for rule in rules}


def share(part: int, whole: int) -> float:
    """part / whole; 0 of nothing."""
    return part / whole if whole else 0.0
