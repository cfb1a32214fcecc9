"""Guesses a text's language by the short words that nearly every sentence contains.

    share(language) = sum over the text's words of 1 / (languages that have the word) / words

The language with the highest share wins; below a tenth, the text is not prose in any language of
the table. It needs a few sentences, in a language that separates words by white space. Models
trained on n-grams (fastText's lid.176, as FineWeb uses it) know hundreds of languages.
Source: Grefenstette 1995, "Comparing two language identification schemes": short words.
"""

from __future__ import annotations

import re
from collections import Counter
from functools import partial

from minitrain.data.preparation.filters.rules import Rule
from minitrain.errors import unknown_name

SOURCE = "short words, Grefenstette 1995"
LEAST = 0.1
WORD = re.compile(r"[^\W\d_]+")
SHORT_WORDS = {
    "en": "the of and to in a is that it was for on with as his he be by this are not from had at",
    "de": "der die und in den von zu das mit sich des auf für ist im dem nicht ein eine als auch",
    "fr": "de la le et les des en un du une que est pour qui dans il par pas sur au ne se ce plus",
    "es": "de la que el en y a los se del las un por con no una su para es al lo como más pero",
    "it": "di e il la che in un è per una non del si con da i le sono al dei della gli come più ma",
    "pt": "de a o que e do da em um para é com não uma os no se na por mais as dos como mas ao",
    "nl": "de van het een en in is dat op te zijn met voor niet aan er die om ook als maar bij uit",
    "sv": "och i att det som en på är av för med till den har de inte om ett han men var sig så",
    "pl": "w i na z do się nie że to jest o jak po za od ale przez dla tym przy był jego są czy",
}
TABLE = {name: frozenset(words.split()) for name, words in SHORT_WORDS.items()}
SHARED = Counter(word for words in TABLE.values() for word in words)


def language_of(text: str) -> tuple[str, float]:
    """The language's two letters and its share; "" if none reaches a tenth."""
    words = Counter(WORD.findall(text.lower()))
    total = max(1, sum(words.values()))
    shares = {
        name: sum(words[word] / SHARED[word] for word in own) / total for name, own in TABLE.items()
    }
    name = max(shares, key=shares.__getitem__)
    return (name, shares[name]) if shares[name] >= LEAST else ("", shares[name])


def another_language(text: str, language: str = "en") -> bool:
    return language_of(text)[0] != language


def language_rule(language: str = "en") -> Rule:
    """A rule that drops texts in other languages or none; InputError if not in the table."""
    if language not in TABLE:
        raise unknown_name("language", language, TABLE)
    return Rule(partial(another_language, language=language), SOURCE)
