"""LoRA beside a layer: the frozen matrix, and two thin ones that learn.

The numbers trained are R(I + O), those of W are I·O (Hu et al. 2021).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from minitrain.lab.drawing.display import ORANGE
from minitrain.lab.drawing.figures import lighter
from minitrain.lab.drawing.shapes import PALE, arrow, bare, box, say
from minitrain.lab.ideas.schematic import Schematic

if TYPE_CHECKING:
    from matplotlib.axes import Axes

INS, OUTS = 64, 128
SCALE = 0.021  # of a feature, as drawn


def trained(rank: int) -> int:
    """Numbers in A and B."""
    return rank * (INS + OUTS)


def draw_low_rank(ax: Axes, rank: int) -> None:
    bare(ax, 12.4, 4.2)
    wide, high, thin = INS * SCALE * 1.5, OUTS * SCALE, max(rank * SCALE * 1.5, 0.07)
    hue = lighter(ORANGE, 0.25)
    say(ax, 0.5, 2.0, "x", 13, fontweight="bold")
    box(ax, 3.0, 0.7, wide, high, PALE, f"W\n{OUTS} x {INS}\nfrozen", 9, edgecolor="#999999")
    arrow(ax, (0.8, 1.9), (2.9, 1.9))
    box(ax, 6.3, 3.3 - thin / 2, wide, thin, hue, edgecolor="#999999")
    say(ax, 6.3 + wide / 2, 3.9, f"A: {rank} x {INS}, random", 8)
    arrow(ax, (0.7, 2.2), (6.2, 3.3), bend=0.25)
    box(ax, 9.4, 0.7, thin, high, hue, edgecolor="#999999")
    say(ax, 9.4 + thin / 2, 0.35, f"B: {OUTS} x {rank}, zero at first", 8)
    arrow(ax, (6.4 + wide, 3.3), (9.3, 2.4))
    say(ax, 8.75, 3.55, f"{rank} numbers a token", 8)
    say(ax, 11.9, 1.9, "+ = y", 12, fontweight="bold")
    arrow(ax, (3.1 + wide, 1.4), (9.3, 1.4))
    arrow(ax, (9.5 + thin, 1.9), (11.4, 1.9))


def say_low_rank(rank: int) -> str:
    share = 100 * trained(rank) / (INS * OUTS)
    return (
        f"Rank {rank}: {trained(rank):,} numbers learn beside {INS * OUTS:,} that do not. x goes "
        f"through the frozen W and, beside it, through A of {rank} x {INS} and B of {OUTS} x "
        f"{rank}; both answers are added. What is trained is {share:.0f}% of W."
    )


low_rank = Schematic(draw_low_rank, say_low_rank, (9.5, 3.3), {"rank": ([1, 2, 4, 8, 16], 8)})
