"""Gopher's repetition rules: a text that says the same again and again.

    lines, paragraphs that came before     share of them > 0.30, share of their signs > 0.20
    the commonest n-gram                   share of the signs > 0.20, 0.18, 0.16 for n = 2, 3, 4
    n-grams that came before               > 0.15, 0.14, …, 0.10 for n = 5 to 10

Source: Rae et al. 2021 (2112.11446), table A1.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from operator import itemgetter

from minitrain.data.preparation.filters.rule import Rule, share

SOURCE = "Gopher repetition, Rae et al. 2021 (2112.11446), table A1"
COMMONEST = {2: 0.20, 3: 0.18, 4: 0.16}
REPEATED = {5: 0.15, 6: 0.14, 7: 0.13, 8: 0.12, 9: 0.11, 10: 0.10}


def repeated_lines(text: str, most: float = 0.3, most_signs: float = 0.2) -> bool:
    return _repeat(_parts(text, 1), text, most, most_signs)


def repeated_paragraphs(text: str, most: float = 0.3, most_signs: float = 0.2) -> bool:
    return _repeat(_parts(text, 2), text, most, most_signs)


def one_n_gram_again_and_again(text: str, most: Mapping[int, float] = COMMONEST) -> bool:
    words = text.split()
    return any(share(commonest_signs(words, n), len(text)) > limit for n, limit in most.items())


def repeated_n_grams(text: str, most: Mapping[int, float] = REPEATED) -> bool:
    words = text.split()
    for n, limit in sorted(most.items()):
        signs = repeated_signs(words, n)
        if share(signs, len(text)) > limit:
            return True
        if not signs:  # then nothing longer comes again
            return False
    return False


def commonest_signs(words: Sequence[str], n: int) -> int:
    """Characters that the commonest n-gram fills, its spaces counted; once is no repetition."""
    counts = Counter(_n_grams(words, n))
    n_gram, times = max(counts.items(), key=itemgetter(1), default=((), 0))
    return (sum(map(len, n_gram)) + n - 1) * times if times > 1 else 0


def repeated_signs(words: Sequence[str], n: int) -> int:
    """Characters in n-grams that came before, none counted twice."""
    n_grams = list(_n_grams(words, n))
    seen: set[tuple[str, ...]] = set()
    signs = start = 0
    while start < len(n_grams):
        n_gram = n_grams[start]
        if n_gram in seen:
            signs += sum(map(len, n_gram))
            start += n
        else:
            seen.add(n_gram)
            start += 1
    return signs


def _n_grams(words: Sequence[str], n: int) -> Iterator[tuple[str, ...]]:
    return zip(*(words[start:] for start in range(n)))


def _parts(text: str, ends: int) -> list[str]:
    """What lies between so many line ends or more, of any system; a line of spaces is blank."""
    lines = map(str.rstrip, text.strip().splitlines())
    return re.split(f"\n{{{ends},}}", "\n".join(lines))


def _repeat(parts: Sequence[str], text: str, most: float, most_signs: float) -> bool:
    seen: set[str] = set()
    again = [part for part in parts if part in seen or seen.add(part)]
    return (
        share(len(again), len(parts)) > most or share(sum(map(len, again)), len(text)) > most_signs
    )


REPETITION = tuple(
    Rule(function, SOURCE)
    for function in (
        repeated_lines,
        repeated_paragraphs,
        one_n_gram_again_and_again,
        repeated_n_grams,
    )
)
