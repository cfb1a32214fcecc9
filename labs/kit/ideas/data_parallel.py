"""Data parallelism: every rank has the whole model and its own data; only gradients are shared."""

from __future__ import annotations

from typing import TYPE_CHECKING

from minitrain.lab.drawing.display import BLUE, GREEN, ORANGE, PINK
from minitrain.lab.drawing.figures import INK
from minitrain.lab.drawing.shapes import arrow, bare, box, say
from minitrain.lab.ideas.schematic import Schematic

if TYPE_CHECKING:
    from matplotlib.axes import Axes

LEFT, ACROSS, WIDE, HIGH, STEP = 2.3, 2.5, 2.1, 0.5, 0.85
PLACES = (
    "its own batch", "same weights", "its own gradient", "average,\nby all-reduce", "new weights",
)  # fmt: skip
COLORS = (BLUE, ORANGE, GREEN, PINK)  # of what differs from rank to rank


def words_of(row: int, rank: int, ranks: int) -> str:
    """What stands in a box."""
    total = " + ".join(f"g{r}" for r in range(ranks))
    return (f"batch {rank}", "W", f"g{rank}", f"({total}) / {ranks}", "W − η · average")[row]


def draw_replicas(ax: Axes, ranks: int) -> None:
    bare(ax, LEFT + ACROSS * 4, 0.5 + STEP * len(PLACES))
    for row, label in enumerate(PLACES):
        y = 0.45 + STEP * row
        say(ax, LEFT - 0.25, y + HIGH / 2, label, ha="right")
        for rank in range(ranks):
            x, middle = LEFT + ACROSS * rank, LEFT + ACROSS * rank + WIDE / 2
            own = row in (0, 2)  # what differs from rank to rank has the rank's colour
            color = COLORS[rank] if own else INK if row == 3 else "#dddddd"
            box(ax, x, y, WIDE, HIGH, color, words_of(row, rank, ranks), 8.5)
            if row + 1 < len(PLACES):
                arrow(ax, (middle, y + HIGH), (middle, y + STEP))
    for rank in range(ranks):
        say(ax, LEFT + ACROSS * rank + WIDE / 2, 0.2, f"rank {rank}", fontweight="bold")
    y = 0.45 + STEP * 3 + HIGH / 2
    for rank in range(ranks - 1):
        ends = [(LEFT + ACROSS * rank + WIDE, y), (LEFT + ACROSS * (rank + 1), y)]
        arrow(ax, *ends, ORANGE)
        arrow(ax, *reversed(ends), ORANGE)


def say_replicas(ranks: int) -> str:
    return (
        f"One step on {ranks} ranks: different batches, the same weights before and after. Each "
        "rank sends its own batch through the same weights W and gets its own gradient; the "
        f"gradients are averaged over the {ranks} ranks by an all-reduce, the only thing "
        "that is sent; each rank then takes the same optimizer step, so that the weights stay "
        "equal."
    )


replicas = Schematic(draw_replicas, say_replicas, (9.5, 3.7), {"ranks": (2, 4, 4)})
