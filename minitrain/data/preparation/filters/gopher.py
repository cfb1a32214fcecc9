"""Gopher's quality rules: is it prose, of a length that people write, in English?

Each drops a document outside of its threshold, which is the paper's.
Source: Rae et al. 2021, "Scaling language models: methods, analysis and insights from training
Gopher" (2112.11446), appendix A.1.1.
"""

from __future__ import annotations

from minitrain.data.preparation.filters.rule import Rule, share

SOURCE = "Gopher quality, Rae et al. 2021 (2112.11446), A.1.1"
STOP_WORDS = frozenset(("the", "be", "to", "of", "and", "that", "have", "with"))
BULLETS = ("•", "-", "*", "‣", "◦")
ELLIPSES = ("...", "…")


def too_few_words(text: str, least: int = 50) -> bool:
    return len(text.split()) < least


def too_many_words(text: str, most: int = 100_000) -> bool:
    return len(text.split()) > most


def unusual_word_length(text: str, least: float = 3, most: float = 10) -> bool:
    """The mean length of a word is outside of [least, most]."""
    words = text.split()
    return not least <= share(sum(map(len, words)), len(words)) <= most


def too_many_hashes(text: str, most: float = 0.1) -> bool:
    """# a word."""
    return share(text.count("#"), len(text.split())) > most


def too_many_ellipses(text: str, most: float = 0.1) -> bool:
    """… or ... a word."""
    return share(sum(map(text.count, ELLIPSES)), len(text.split())) > most


def mostly_bullets(text: str, most: float = 0.9) -> bool:
    """The share of lines that begin with a bullet."""
    lines = _lines(text)
    return share(sum(line.startswith(BULLETS) for line in lines), len(lines)) > most


def lines_break_off(text: str, most: float = 0.3) -> bool:
    """The share of lines that end with an ellipsis."""
    lines = _lines(text)
    return share(sum(line.endswith(ELLIPSES) for line in lines), len(lines)) > most


def words_without_letters(text: str, least: float = 0.8) -> bool:
    """The share of words with a letter in them is under `least`."""
    words = text.split()
    return share(sum(any(map(str.isalpha, word)) for word in words), len(words)) < least


def no_stop_words(text: str, least: int = 2) -> bool:
    """Fewer than `least` different ones of the eight that nearly all English prose has."""
    return len(STOP_WORDS.intersection(text.lower().split())) < least


def _lines(text: str) -> list[str]:
    return [line.strip() for line in text.splitlines() if line.strip()]


GOPHER = tuple(
    Rule(function, SOURCE)
    for function in (
        too_few_words,
        too_many_words,
        unusual_word_length,
        too_many_hashes,
        too_many_ellipses,
        mostly_bullets,
        lines_break_off,
        words_without_letters,
        no_stop_words,
    )
)
