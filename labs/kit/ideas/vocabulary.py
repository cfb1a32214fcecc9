"""An embedding cut by rows: one rank knows the token, the others give zeros, the sum is its row."""

from __future__ import annotations

from typing import TYPE_CHECKING

from minitrain.lab.drawing.display import BLUE, GREEN, ORANGE, PINK
from minitrain.lab.drawing.figures import lighter
from minitrain.lab.drawing.shapes import PALE, arrow, bare, box, say
from minitrain.lab.ideas.schematic import Schematic

if TYPE_CHECKING:
    from matplotlib.axes import Axes

RANKS, ROWS = 4, 3  # ROWS on each rank: a vocabulary of RANKS x ROWS
HUES = (BLUE, ORANGE, GREEN, PINK)
ACROSS, WIDE, HIGH = 2.6, 1.9, 0.5


def answers(token: int) -> list[int | None]:
    """Of each rank, the place of the token among its own rows; None: it is elsewhere."""
    places = [token - rank * ROWS for rank in range(RANKS)]
    return [place if 0 <= place < ROWS else None for place in places]


def draw_vocabulary_cut(ax: Axes, token: int) -> None:
    bare(ax, ACROSS * RANKS + 0.2, 4.6)
    for rank, place in enumerate(answers(token)):
        left, middle = 0.3 + ACROSS * rank, 0.3 + ACROSS * rank + WIDE / 2
        say(ax, middle, 0.3, f"rank {rank}", fontweight="bold")
        for row in range(ROWS):
            hue = lighter(HUES[rank], 0.3 if row == place else 0.8)
            words = f"word {rank * ROWS + row}"
            box(ax, left, 0.6 + HIGH * row, WIDE, HIGH - 0.06, hue, words)
        found = "zeros" if place is None else f"its row {token} − {rank * ROWS} = {place}"
        hue = PALE if place is None else lighter(HUES[rank], 0.3)
        arrow(ax, (middle, 0.65 + HIGH * ROWS), (middle, 2.55))
        box(ax, left, 2.6, WIDE, HIGH, hue, found, edgecolor="#999999")
        arrow(ax, (middle, 3.12), (middle, 3.78), ORANGE)
    say(ax, (0.3 + ACROSS * (RANKS - 1) + WIDE + 0.3) / 2, 3.45, "all-reduce: the sum")
    owner = next(rank for rank, place in enumerate(answers(token)) if place is not None)
    words = f"the vector of word {token}, on every rank"
    box(ax, 0.3, 3.8, ACROSS * (RANKS - 1) + WIDE, HIGH, lighter(HUES[owner], 0.45), words)


def say_vocabulary_cut(token: int) -> str:
    owner = next(rank for rank, place in enumerate(answers(token)) if place is not None)
    return (
        f"Word {token} of {RANKS * ROWS} is looked up where its row is: on rank {owner}. Each of "
        f"{RANKS} ranks holds {ROWS} rows; rank {owner} finds it at its own row "
        f"{token % ROWS}, the others give zeros, and an all-reduce gives the sum to every rank."
    )


vocabulary_cut = Schematic(
    draw_vocabulary_cut, say_vocabulary_cut, (8.5, 3.9), {"token": (0, RANKS * ROWS - 1, 7)}
)
