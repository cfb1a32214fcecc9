"""A model cut between its layers: each rank has some, and one tensor travels to the next rank."""

from __future__ import annotations

from typing import TYPE_CHECKING

from minitrain.lab.drawing.display import BLUE, GREEN, ORANGE, PINK
from minitrain.lab.drawing.figures import lighter
from minitrain.lab.drawing.shapes import arrow, bare, box, say
from minitrain.lab.ideas.schematic import Schematic
from minitrain.words import plural

if TYPE_CHECKING:
    from matplotlib.axes import Axes

LAYERS = 8
HUES = (BLUE, ORANGE, GREEN, PINK)
WIDE, GAP, LEFT = 1.0, 1.0, 0.2  # of a layer, between ranks, before the first


def draw_stages(ax: Axes, ranks: int) -> None:
    bare(ax, 2 * LEFT + WIDE * (LAYERS + 2) + GAP * 3, 2.9)
    each, x = LAYERS // ranks, LEFT
    for rank in range(ranks):
        names = [str(i) for i in range(rank * each, (rank + 1) * each)]
        names = ["embed"] * (rank == 0) + names + ["head"] * (rank == ranks - 1)
        say(ax, x + WIDE * len(names) / 2, 0.55, f"rank {rank}", fontweight="bold")
        for name in names:
            hue = lighter(HUES[rank], 0.65 if name in ("embed", "head") else 0.25)
            box(ax, x + 0.04, 0.9, WIDE - 0.08, 0.9, hue, name, 8.5)
            x += WIDE
        if rank < ranks - 1:
            arrow(ax, (x + 0.08, 1.15), (x + GAP - 0.08, 1.15))
            arrow(ax, (x + GAP - 0.08, 1.55), (x + 0.08, 1.55))
            say(ax, x + GAP / 2, 0.9, "x")
            say(ax, x + GAP / 2, 1.85, "gradient", 8.5)
            x += GAP
    legend = "numbers: layers    to the right: forward    to the left: backward"
    say(ax, LEFT, 2.5, legend, ha="left")


def say_stages(ranks: int) -> str:
    each = LAYERS // ranks
    how = f"{each} each, one tensor to a neighbour" if ranks > 1 else "nothing to send"
    return (
        f"{LAYERS} layers on {plural(ranks, 'rank')}: {how}. The "
        "first rank has the embedding as well, the last one the head. Forward hands x to the right "
        "across each border, backward its gradient to the left; nothing else is sent."
    )


pipeline_stages = Schematic(draw_stages, say_stages, (9.5, 2.2), {"ranks": ([1, 2, 4], 4)})
