"""Medusa's heads: from one hidden vector each guesses another token, and is taught by the text."""

from __future__ import annotations

from typing import TYPE_CHECKING

from minitrain.lab.drawing.display import BLUE, ORANGE
from minitrain.lab.drawing.shapes import IDLE, PALE, arrow, bare, box, say
from minitrain.lab.ideas.schematic import Schematic

if TYPE_CHECKING:
    from matplotlib.axes import Axes

WORDS = ["Ella", "found", "a", "red", "pot", "at", "home"]
HEADS = ["the target's own", "head 1", "head 2", "head 3"]
ACROSS, WIDE = 1.45, 1.3


def target_of(place: int, head: int) -> int | None:
    """Which token this head at this place is taught; head 0 is the target's own."""
    at = place + head + 1
    return at if at < len(WORDS) else None


def draw_further_heads(ax: Axes, head: str) -> None:
    number = HEADS.index(head)
    bare(ax, 12.4, 4.6)
    for place, word in enumerate(WORDS):
        x = 1.9 + ACROSS * place
        box(ax, x, 0.4, WIDE, 0.55, BLUE, word)
        wanted = target_of(place, number)
        if wanted is None:
            style = {key: value for key, value in IDLE.items() if key != "facecolor"}
            box(ax, x, 2.9, WIDE, 0.55, "white", **style)
        else:
            box(ax, x, 2.9, WIDE, 0.55, ORANGE, WORDS[wanted])
        box(ax, x, 1.65, WIDE, 0.55, PALE, f"$h_{place}$")
        arrow(ax, (x + WIDE / 2, 0.95), (x + WIDE / 2, 1.65))
        if wanted is not None:
            arrow(ax, (x + WIDE / 2, 2.2), (x + WIDE / 2, 2.9))
    for y, words in ((0.67, "text"), (1.92, "hidden"), (3.17, "is taught")):
        say(ax, 1.7, y, words, 9, ha="right")
    for y, words in ((1.3, "the target reads\nall up to here"), (2.55, _full(number))):
        say(ax, 1.7, y, words, 8, ha="right")
    words = f"{_full(number)}: the token {number + 1} further on    hatched: there is none"
    if number:
        words += f"    ({_full(0)}: 1 further on)"
    say(ax, 1.9, 4.1, words, 9, ha="left")


def _full(number: int) -> str:
    return HEADS[number] if number else f"{HEADS[0]} head"


def say_further_heads(head: str) -> str:
    number = HEADS.index(head)
    lacking = sum(target_of(place, number) is None for place in range(len(WORDS)))
    return (
        f"What {_full(number)} is taught at each place: the token {number + 1} further on. It "
        f"guesses from the hidden vector of a token; the last {lacking} of {len(WORDS)} places "
        "have none."
    )


further_heads = Schematic(
    draw_further_heads, say_further_heads, (9.5, 3.6), {"head": (HEADS, "head 1")}
)
