"""C4's rules: lines that are sentences, no code, no placeholders.

C4 first throws away lines (`sentence_lines`) and then judges what is left of the page.
Source: Raffel et al. 2020, "Exploring the limits of transfer learning" (1910.10683; JMLR 21), 2.2.
Left out: its list of bad words, which takes whole subjects away with them (Dodge et al. 2021,
2104.08758).
"""

from __future__ import annotations

import re

from minitrain.data.preparation.filters.rule import Rule

SOURCE = "C4, Raffel et al. 2020 (1910.10683), 2.2"
ENDS = (".", "!", "?", '"', "”", "'", "’")
SENTENCE_END = re.compile(r"[.!?]+[\"”'’)]*(?=\s|$)")


def sentence_lines(text: str, least_words: int = 3) -> str:
    """The text with only those lines that end as a sentence does and have `least_words` words."""
    return "\n".join(line for line in text.splitlines() if _is_kept(line.strip(), least_words))


def too_few_sentences(text: str, least: int = 5) -> bool:
    return len(SENTENCE_END.findall(text)) < least


def curly_bracket(text: str) -> bool:
    """As code has it, and prose does not."""
    return "{" in text or "}" in text


def lorem_ipsum(text: str) -> bool:
    return "lorem ipsum" in text.lower()


def _is_kept(line: str, least_words: int) -> bool:
    return (
        line.endswith(ENDS)
        and not line.endswith("...")
        and len(line.split()) >= least_words
        and "javascript" not in line.lower()
    )


C4 = tuple(Rule(function, SOURCE) for function in (curly_bracket, lorem_ipsum, too_few_sentences))
