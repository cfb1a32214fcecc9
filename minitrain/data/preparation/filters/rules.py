"""Published quality rules: small functions that return whether a text fails, with their sources.

    GOPHER       length, symbols, bullets, stop words     Rae et al. 2021 (2112.11446), A.1.1
    REPETITION   repeated lines and n-grams               the same, table A1
    C4           whole sentences, no code                 Raffel et al. 2020 (1910.10683), 2.2
    FINEWEB      lists and menus                          Penedo et al. 2024 (2406.17557), 3.6

    rule = Rule(partial(too_few_words, least=20), "mine")
    first_failed([*GOPHER, rule], text)  ->  "too_few_words", or "" if the text passes all

The first rule that fails is recorded as the reason of the drop: the order of the rules decides the
reason, never what is dropped. Words are separated by white space, as in Gopher; FineWeb's values
are those of its code, datatrove's FineWebQualityFilter. C4's list of bad words is left out: it
removes whole subjects (Dodge et al. 2021, 2104.08758).

A step takes a row and returns a row, and depends on nothing else, so that it runs wherever rows are
mapped: `dataset.map(step)` of `datasets`, streaming or not, or of Ray Data; then
`dataset.filter(is_kept)`. A dropped row passes all later steps untouched and keeps its reason.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter

from minitrain.data.preparation.documents import Row

STOP_WORDS = frozenset(("the", "be", "to", "of", "and", "that", "have", "with"))
BULLETS = ("•", "-", "*", "‣", "◦")
ELLIPSES = ("...", "…")
COMMONEST = {2: 0.20, 3: 0.18, 4: 0.16}  # n: the largest allowed share of the characters
REPEATED = {5: 0.15, 6: 0.14, 7: 0.13, 8: 0.12, 9: 0.11, 10: 0.10}
ENDS = (".", "!", "?", '"', "”", "'", "’")
SENTENCE_ENDS = (*ENDS, "…", "。", "！", "？")
SENTENCE_END = re.compile(r"[.!?]+[\"”'’)]*(?=\s|$)")

# --- rules, and the steps built from them ---


@dataclass(frozen=True)
class Rule:
    """`fails(text)` is true if the text should be dropped."""

    fails: Callable[[str], bool]
    source: str

    @property
    def name(self) -> str:
        return getattr(self.fails, "func", self.fails).__name__  # unwraps a partial


def first_failed(rules: Sequence[Rule], text: str) -> str:
    """The name of the first rule that a text fails; empty if it passes all."""
    return next((rule.name for rule in rules if rule.fails(text)), "")


def shares_dropped(rules: Sequence[Rule], texts: Iterable[str]) -> dict[str, float]:
    """For each rule alone, by name, the share of the texts that it would drop."""
    texts = list(texts)
    return {rule.name: share(sum(map(rule.fails, texts)), len(texts)) for rule in rules}


Step = Callable[[Row], Row]


@dataclass(frozen=True)
class Filter:
    """Sets `dropped` to the first rule that the text fails."""

    rules: tuple[Rule, ...]

    def __call__(self, row: Row) -> Row:
        return {**row, "dropped": row.get("dropped") or first_failed(self.rules, row["text"])}


@dataclass(frozen=True)
class Edit:
    """Changes `text`, and drops the row if nothing is left."""

    edit: Callable[[str], str]

    def __call__(self, row: Row) -> Row:
        if row.get("dropped"):
            return row
        text = self.edit(row["text"])
        return {**row, "text": text, "dropped": "" if text.strip() else "nothing_left"}


def run_steps(steps: Iterable[Step], row: Row) -> Row:
    """The row after all steps, with `dropped` set."""
    row = {"dropped": "", **row}
    for step in steps:
        row = step(row)
    return row


def is_kept(row: Row) -> bool:
    return not row["dropped"]


# --- Gopher's quality: is it prose, of plausible length, in English? ---


def too_few_words(text: str, least: int = 50) -> bool:
    return len(text.split()) < least


def too_many_words(text: str, most: int = 100_000) -> bool:
    return len(text.split()) > most


def unusual_word_length(text: str, least: float = 3, most: float = 10) -> bool:
    """The mean length of a word is outside [least, most]."""
    words = text.split()
    return not least <= share(sum(map(len, words)), len(words)) <= most


def too_many_hashes(text: str, most: float = 0.1) -> bool:
    """More than `most` `#` characters per word."""
    return share(text.count("#"), len(text.split())) > most


def too_many_ellipses(text: str, most: float = 0.1) -> bool:
    """More than `most` ellipses (`…` or `...`) per word."""
    return share(sum(map(text.count, ELLIPSES)), len(text.split())) > most


def mostly_bullets(text: str, most: float = 0.9) -> bool:
    """The share of lines that begin with a bullet is over `most`."""
    lines = _lines(text)
    return share(sum(line.strip().startswith(BULLETS) for line in lines), len(lines)) > most


def lines_break_off(text: str, most: float = 0.3) -> bool:
    """The share of lines that end with an ellipsis is over `most`."""
    lines = _lines(text)
    return share(sum(line.strip().endswith(ELLIPSES) for line in lines), len(lines)) > most


def words_without_letters(text: str, least: float = 0.8) -> bool:
    """The share of words with a letter in them is under `least`."""
    words = text.split()
    return share(sum(any(map(str.isalpha, word)) for word in words), len(words)) < least


def no_stop_words(text: str, least: int = 2) -> bool:
    """Fewer than `least` distinct of the eight stop words found in nearly all English prose."""
    return len(STOP_WORDS.intersection(text.lower().split())) < least


# --- Gopher's repetition: lines and paragraphs, the commonest n-gram, repeated n-grams ---


def repeated_lines(text: str, most: float = 0.3, most_characters: float = 0.2) -> bool:
    return _repeats(_parts(text, 1), text, most, most_characters)


def repeated_paragraphs(text: str, most: float = 0.3, most_characters: float = 0.2) -> bool:
    return _repeats(_parts(text, 2), text, most, most_characters)


def one_n_gram_again_and_again(text: str, most: Mapping[int, float] = COMMONEST) -> bool:
    words = text.split()
    return any(share(commonest_length(words, n), len(text)) > limit for n, limit in most.items())


def repeated_n_grams(text: str, most: Mapping[int, float] = REPEATED) -> bool:
    words = text.split()
    for n, limit in sorted(most.items()):
        length = repeated_length(words, n)
        if share(length, len(text)) > limit:
            return True
        if not length:  # then nothing longer repeats
            return False
    return False


def commonest_length(words: Sequence[str], n: int) -> int:
    """Characters covered by the commonest n-gram, spaces included; 0 if it occurs once."""
    counts = Counter(_n_grams(words, n))
    n_gram, times = max(counts.items(), key=itemgetter(1), default=((), 0))
    return (sum(map(len, n_gram)) + n - 1) * times if times > 1 else 0


def repeated_length(words: Sequence[str], n: int) -> int:
    """Characters in n-grams that occurred before, none counted twice."""
    n_grams = list(_n_grams(words, n))
    seen: set[tuple[str, ...]] = set()
    length = start = 0
    while start < len(n_grams):
        n_gram = n_grams[start]
        if n_gram in seen:
            length += sum(map(len, n_gram))
            start += n
        else:
            seen.add(n_gram)
            start += 1
    return length


# --- C4: `sentence_lines` first drops lines, then the rules judge the rest ---


def sentence_lines(text: str, least_words: int = 3) -> str:
    """Keeps only lines that end like a sentence and have at least `least_words` words."""
    return "\n".join(line for line in text.splitlines() if _is_sentence(line, least_words))


def curly_bracket(text: str) -> bool:
    """A curly bracket, which code has and prose does not."""
    return "{" in text or "}" in text


def lorem_ipsum(text: str) -> bool:
    return "lorem ipsum" in text.lower()


def too_few_sentences(text: str, least: int = 5) -> bool:
    return len(SENTENCE_END.findall(text)) < least


# --- FineWeb's own: thresholds where the histograms of a good and a bad crawl diverge ---


def lines_without_end(text: str, least: float = 0.12) -> bool:
    """The share of lines that end with punctuation is under `least`."""
    lines = _lines(text)
    return share(sum(line.rstrip().endswith(SENTENCE_ENDS) for line in lines), len(lines)) < least


def short_lines(text: str, most: float = 0.67, length: int = 30) -> bool:
    """The share of lines of at most `length` characters is over `most`."""
    lines = _lines(text)
    return share(sum(len(line) <= length for line in lines), len(lines)) > most


def text_in_repeated_lines(text: str, most: float = 0.01) -> bool:
    """The share of characters in repeated lines is over `most`."""
    lines = _lines(text)
    return share(sum(map(len, _again(lines))), sum(map(len, lines))) > most


def line_for_each_few_words(text: str, most: float = 0.3) -> bool:
    """More than `most` line breaks per word, as in lists."""
    return share(text.count("\n"), len(text.split())) > most


# --- shared helpers ---


def share(part: int, whole: int) -> float:
    """part / whole; 0 if `whole` is 0."""
    return part / whole if whole else 0.0


def _lines(text: str) -> list[str]:
    return [line for line in text.splitlines() if line.strip()]


def _parts(text: str, ends: int) -> list[str]:
    """Splits at `ends` or more line ends of any platform; a line of spaces is blank."""
    lines = map(str.rstrip, text.strip().splitlines())
    return re.split(f"\n{{{ends},}}", "\n".join(lines))


def _again(parts: Iterable[str]) -> list[str]:
    """The parts that occurred before."""
    seen: set[str] = set()
    return [part for part in parts if part in seen or seen.add(part)]


def _repeats(parts: Sequence[str], text: str, most: float, most_characters: float) -> bool:
    again = _again(parts)
    length = sum(map(len, again))
    return share(len(again), len(parts)) > most or share(length, len(text)) > most_characters


def _n_grams(words: Sequence[str], n: int) -> Iterator[tuple[str, ...]]:
    return zip(*(words[start:] for start in range(n)))


def _is_sentence(line: str, least_words: int) -> bool:
    line = line.strip()
    ends = line.endswith(ENDS) and not line.endswith("...")
    return ends and len(line.split()) >= least_words and "javascript" not in line.lower()


def _rules(source: str, *functions: Callable[[str], bool]) -> tuple[Rule, ...]:
    return tuple(Rule(function, source) for function in functions)


GOPHER = _rules(
    "Gopher quality, Rae et al. 2021 (2112.11446), A.1.1",
    *(too_few_words, too_many_words, unusual_word_length, too_many_hashes, too_many_ellipses),
    *(mostly_bullets, lines_break_off, words_without_letters, no_stop_words),
)
REPETITION = _rules(
    "Gopher repetition, Rae et al. 2021 (2112.11446), table A1",
    *(repeated_lines, repeated_paragraphs, one_n_gram_again_and_again, repeated_n_grams),
)
C4 = _rules(
    "C4, Raffel et al. 2020 (1910.10683), 2.2", curly_bracket, lorem_ipsum, too_few_sentences
)
FINEWEB = _rules(
    "FineWeb, Penedo et al. 2024 (2406.17557), 3.6",
    *(lines_without_end, short_lines, text_in_repeated_lines, line_for_each_few_words),
)
