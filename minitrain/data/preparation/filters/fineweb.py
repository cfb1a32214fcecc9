"""FineWeb's own rules: pages that are lists and menus, which Gopher's and C4's let through.

The thresholds are where histograms of a good and of a bad crawl part.
Source: Penedo et al. 2024, "The FineWeb datasets" (2406.17557), section 3.6; the values are those
of its code, datatrove's FineWebQualityFilter.
"""

from __future__ import annotations

from minitrain.data.preparation.filters.c4 import ENDS
from minitrain.data.preparation.filters.rule import Rule, share

SOURCE = "FineWeb, Penedo et al. 2024 (2406.17557), 3.6"
SENTENCE_ENDS = (*ENDS, "…", "。", "！", "？")


def lines_without_end(text: str, least: float = 0.12) -> bool:
    """The share of lines that end with punctuation is under `least`."""
    lines = _lines(text)
    return share(sum(line.rstrip().endswith(SENTENCE_ENDS) for line in lines), len(lines)) < least


def short_lines(text: str, most: float = 0.67, length: int = 30) -> bool:
    """The share of lines of at most `length` signs."""
    lines = _lines(text)
    return share(sum(len(line) <= length for line in lines), len(lines)) > most


def signs_in_repeated_lines(text: str, most: float = 0.01) -> bool:
    """The share of the signs that lie in lines which came before."""
    lines, seen, again = _lines(text), set(), 0
    for line in lines:
        again += len(line) if line in seen else 0
        seen.add(line)
    return share(again, sum(map(len, lines))) > most


def line_for_each_few_words(text: str, most: float = 0.3) -> bool:
    """Line breaks a word, as lists have them."""
    return share(text.count("\n"), len(text.split())) > most


def _lines(text: str) -> list[str]:
    return [line for line in text.splitlines() if line.strip()]


FINEWEB = tuple(
    Rule(function, SOURCE)
    for function in (
        lines_without_end,
        short_lines,
        signs_in_repeated_lines,
        line_for_each_few_words,
    )
)
