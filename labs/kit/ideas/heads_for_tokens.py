"""Ulysses: before attention a rank has some tokens of all heads, in it all tokens of some heads.

Rows are tokens, columns heads. An all-to-all turns one cut into the other, and after attention a
second one turns it back (Jacobs et al. 2023).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from minitrain.lab.drawing.display import BLUE, GREEN, ORANGE, PINK
from minitrain.lab.drawing.figures import INK, lighter
from minitrain.lab.drawing.shapes import arrow, bare, box, say
from minitrain.lab.ideas.schematic import Schematic

if TYPE_CHECKING:
    from matplotlib.axes import Axes

HUES = (BLUE, ORANGE, GREEN, PINK)
RANKS, HEADS = 4, 8
LEFT, RIGHT, TOP, WIDE, HIGH = 1.75, 8.4, 1.0, 0.56, 0.62


def holder(piece: int, head: int, cut: str) -> int:
    """The rank that has a head of a piece of the text."""
    return piece if cut == "tokens" else head // (HEADS // RANKS)


def draw_heads_for_tokens(ax: Axes, rank: int) -> None:
    bare(ax, RIGHT + WIDE * HEADS + 0.2, TOP + HIGH * RANKS + 1.0)
    draw_cut(ax, LEFT, "tokens", rank, "between layers: cut by tokens")
    draw_cut(ax, RIGHT, "heads", rank, "in attention: cut by heads")
    for piece in range(RANKS):
        say(ax, LEFT - 0.1, TOP + HIGH * (piece + 0.5), f"tokens of rank {piece}", 8.5, ha="right")
    middle, end = TOP + HIGH * RANKS / 2, LEFT + WIDE * HEADS
    arrow(ax, (end + 0.2, middle - 0.15), (RIGHT - 0.15, middle - 0.15))
    arrow(ax, (RIGHT - 0.15, middle + 0.15), (end + 0.2, middle + 0.15))
    say(ax, (end + RIGHT) / 2, middle - 0.55, "all-to-all:\nq, k, v")
    say(ax, (end + RIGHT) / 2, middle + 0.55, "all-to-all:\nanswers")
    foot = TOP + HIGH * RANKS + 0.35
    words = f"number: the rank it goes to; framed: what rank {rank} has or gets"
    say(ax, LEFT, foot, words, ha="left")
    say(ax, LEFT, foot + 0.35, "colour: the rank that has it", ha="left")
    say(ax, RIGHT, foot, "number: the rank it came from", ha="left")


def draw_cut(ax: Axes, left: float, cut: str, rank: int, title: str) -> None:
    """A grid of tokens x heads: coloured by who has a box, numbered by the other end of its way."""
    say(ax, left + WIDE * HEADS / 2, 0.3, title, fontweight="bold")
    far = "heads" if cut == "tokens" else "tokens"
    for head in range(HEADS):
        x = left + WIDE * head
        say(ax, x + WIDE / 2, 0.75, f"h{head}")
        for piece in range(RANKS):
            own, other = holder(piece, head, cut), holder(piece, head, far)
            is_framed = own == rank or (cut == "tokens" and other == rank)
            edge = {"edgecolor": INK, "linewidth": 1.8} if is_framed else {}
            hue = HUES[own] if own == rank else lighter(HUES[own], 0.65)
            y = TOP + HIGH * piece + 0.04
            box(ax, x + 0.04, y, WIDE - 0.08, HIGH - 0.08, hue, str(other), **edge)


def say_heads_for_tokens(rank: int) -> str:
    first = rank * (HEADS // RANKS)
    return (
        f"Rank {rank} gives its tokens of {HEADS - HEADS // RANKS} heads, and gets all tokens of "
        f"heads {first} and {first + 1}. Two grids, a row for each rank's tokens and a column for "
        "each head: on the left a rank has a row, on the right two columns. An all-to-all leads "
        "from left to right with q, k and v, another one back with the answers."
    )


heads_for_tokens = Schematic(
    draw_heads_for_tokens, say_heads_for_tokens, (9.5, 3.9), {"rank": (0, RANKS - 1, 1)}
)
