"""Prefix doubling on a word: the order of its suffixes by 1, 2, 4 and 8 symbols."""

from __future__ import annotations

from typing import TYPE_CHECKING

from minitrain.lab.drawing.display import BLUE, ORANGE
from minitrain.lab.drawing.figures import lighter
from minitrain.lab.drawing.shapes import PALE, bare, box, say
from minitrain.lab.ideas.schematic import Schematic
from minitrain.words import plural

if TYPE_CHECKING:
    from matplotlib.axes import Axes

WORD = "abracadabra"
LEFT, WIDE, HIGH = 2.6, 0.62, 0.44


def ordered(symbols: int) -> list[tuple[int, int]]:
    """(start, rank) of the suffixes in their order; those that are equal so far share a rank."""
    starts = sorted(range(len(WORD)), key=lambda start: WORD[start : start + symbols])
    keys = [WORD[start : start + symbols] for start in starts]
    return [(start, keys.index(key)) for start, key in zip(starts, keys)]


def undecided(symbols: int) -> int:
    """How many suffixes share their rank with another."""
    ranks = [rank for _, rank in ordered(symbols)]
    return sum(ranks.count(rank) > 1 for rank in ranks)


def draw_suffixes(ax: Axes, symbols: int) -> None:
    bare(ax, LEFT + WIDE * len(WORD) + 2.4, 0.8 + HIGH * len(WORD))
    for x, words in ((0.6, "rank"), (1.8, "begins at")):
        say(ax, x, 0.35, words, 9, fontweight="bold")
    ranks = [rank for _, rank in ordered(symbols)]
    for row, (start, rank) in enumerate(ordered(symbols)):
        y = 0.65 + HIGH * row
        color = ORANGE if ranks.count(rank) > 1 else lighter(BLUE, 0.7)
        box(ax, 0.25, y, 0.7, HIGH - 0.06, color, str(rank), 9)
        say(ax, 1.8, y + (HIGH - 0.06) / 2, str(start), 9)
        for place, sign in enumerate(WORD[start:]):
            shade = lighter(BLUE, 0.75) if place < symbols else PALE
            box(ax, LEFT + WIDE * place, y, WIDE - 0.05, HIGH - 0.06, shade, sign, 9)
    words = f"sorted by {plural(symbols, 'symbol')}"
    if undecided(symbols):
        words += "\norange: a rank that is\nshared, not decided\n"
        words += f"next, by {2 * symbols} symbols: by the\nranks of i and of i + {symbols}"
    say(ax, LEFT + WIDE * len(WORD) - 0.6, 4.5, words, 9, ha="left")


def say_suffixes(symbols: int) -> str:
    starts = [start for start, _ in ordered(symbols)]
    left = undecided(symbols)
    state = f"{left} of them still share a rank" if left else "all are decided"
    following = " The next round sorts by pairs of ranks, which is twice as many symbols."
    following = following if left else ""
    first = plural(symbols, "symbol")
    return (
        f"The {len(WORD)} suffixes of {WORD}, sorted by their first {first}: {state}. "
        f"They begin at {starts}.{following}"
    )


sorted_suffixes = Schematic(draw_suffixes, say_suffixes, (9.5, 4.3), {"symbols": ([1, 2, 4, 8], 2)})
