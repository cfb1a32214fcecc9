"""LoRA beside a layer: the frozen matrix, and two thin ones that learn.

The numbers trained are R(I + O), those of W are I·O (Hu et al. 2021).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from minitrain.lab.drawing.display import ORANGE
from minitrain.lab.drawing.figures import lighter
from minitrain.lab.drawing.shapes import PALE, arrow, bare, box, say
from minitrain.lab.ideas.schematic import Schematic
from minitrain.words import plural

if TYPE_CHECKING:
    from matplotlib.axes import Axes

INS, OUTS = 64, 128
SCALE = 0.021  # of a feature, as drawn


def trained(rank: int) -> int:
    """Numbers in A and B."""
    return rank * (INS + OUTS)


def draw_low_rank(ax: Axes, rank: int) -> None:
    bare(ax, 12.4, 5.2)
    wide, high, thin = INS * SCALE * 1.5, OUTS * SCALE, max(rank * SCALE * 1.5, 0.07)
    hue, way = lighter(ORANGE, 0.25), 4.2
    say(ax, 0.5, 2.2, "x", 13, fontweight="bold")
    box(ax, 3.4, 0.2, wide, high, PALE, f"W\n{OUTS} x {INS}\nfrozen", 9, edgecolor="#999999")
    arrow(ax, (0.8, 2.0), (3.3, 1.5))
    arrow(ax, (3.5 + wide, 1.5), (10.7, 2.0))
    arrow(ax, (0.8, 2.4), (3.3, way))
    box(ax, 3.4, way - thin / 2, wide, thin, hue, edgecolor="#999999")
    say(ax, 3.4 + wide / 2, way + 0.6, f"A: {rank} x {INS}, random", 9)
    arrow(ax, (3.5 + wide, way), (8.1, way))
    say(ax, 6.8, way + 0.3, f"{plural(rank, 'number')} a token", 9)
    box(ax, 8.2, 4.9 - high, thin, high, hue, edgecolor="#999999")
    say(ax, 8.2, 5.1, f"B: {OUTS} x {rank}, zero at first", 9)
    arrow(ax, (8.3 + thin, way), (10.7, 2.4))
    say(ax, 9.9, 3.7, "times s", 9, ha="left")
    say(ax, 11.0, 2.2, "+", 14, fontweight="bold")
    arrow(ax, (11.2, 2.2), (11.8, 2.2))
    say(ax, 12.1, 2.2, "y", 13, fontweight="bold")


def say_low_rank(rank: int) -> str:
    share = 100 * trained(rank) / (INS * OUTS)
    return (
        f"Rank {rank}: {trained(rank):,} numbers learn beside {INS * OUTS:,} that do not. x goes "
        f"through the frozen W and, beside it, through A of {rank} x {INS} and B of {OUTS} x "
        f"{rank}, times s; both answers are added. What is trained is {share:.0f}% of W."
    )


low_rank = Schematic(draw_low_rank, say_low_rank, (9.5, 3.6), {"rank": ([1, 2, 4, 8, 16], 8)})
