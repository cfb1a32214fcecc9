"""Bytes a rank holds for one parameter, stage by stage: what is cut shrinks with the ranks.

Mixed precision with Adam: BF16 parameter and gradient, FP32 master copy and two moments, 16 bytes
in all (Rajbhandari et al. 2020, section 3.1).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from minitrain.lab.drawing.display import BLUE, GREEN, ORANGE, PINK
from minitrain.lab.drawing.figures import lighter
from minitrain.lab.drawing.shapes import bare, box, say
from minitrain.lab.ideas.schematic import Schematic

if TYPE_CHECKING:
    from matplotlib.axes import Axes

KINDS = (  # name, bytes a parameter, the first stage that cuts it, colour
    ("parameter, BF16", 2, 3, BLUE),
    ("gradient, BF16", 2, 2, ORANGE),
    ("master copy, FP32", 4, 1, GREEN),
    ("first moment, FP32", 4, 1, PINK),
    ("second moment, FP32", 4, 1, lighter(PINK, 0.45)),
)
LEFT, SCALE, HIGH = 2.1, 0.56, 0.8
FORMULAS = ("16", "4 + 12/N", "2 + 14/N", "16/N")


def held(stage: int, ranks: int) -> list[float]:
    """Bytes a parameter of each kind on one rank."""
    return [size / ranks if stage >= first else size for _, size, first, _ in KINDS]


def draw_zero(ax: Axes, ranks: int) -> None:
    from matplotlib.patches import Rectangle

    bare(ax, LEFT + 16 * SCALE + 2.6, HIGH * 4 + 0.75)
    x = LEFT
    say(ax, LEFT - 0.15, 0.28, f"N = {ranks}", ha="right")
    for (name, *_), size in zip(KINDS, held(0, ranks)):
        say(ax, x + size * SCALE / 2, 0.28, name.replace(", ", "\n"), 8.5)
        x += size * SCALE
    for stage in range(4):
        y, x = 0.65 + HIGH * stage, LEFT
        label = "DDP" if stage == 0 else f"ZeRO-{stage}"
        say(ax, LEFT - 0.15, y + 0.3, f"{label}: {FORMULAS[stage]}", ha="right")
        for (_, _, _, color), size in zip(KINDS, held(stage, ranks)):
            if size >= 0.5:
                words = f"{size:g}".lstrip("0")
                box(ax, x + 0.01, y, size * SCALE - 0.02, 0.6, color, words, 8.5)
            else:  # too narrow for round corners
                sliver = Rectangle((x, y), 0.85 * size * SCALE, 0.6, facecolor=color, linewidth=0)
                ax.add_patch(sliver)
            x += size * SCALE
        total = sum(held(stage, ranks))
        say(ax, x + 0.12, y + 0.3, f"{total:.4g} bytes", ha="left", fontweight="bold")


def say_zero(ranks: int) -> str:
    totals = [sum(held(stage, ranks)) for stage in range(4)]
    shown = ", ".join(f"ZeRO-{stage} {total:.4g}" for stage, total in enumerate(totals) if stage)
    where = f"each of {ranks} ranks" if ranks > 1 else "one rank"
    return (
        f"Bytes a parameter on {where}: DDP 16, {shown}. Bars of the "
        "parameter (2), its gradient (2), the master copy (4) and two moments (4 each): stage 1 "
        "cuts the last three over the ranks, stage 2 the gradient too, stage 3 all of it."
    )


zero_stages = Schematic(draw_zero, say_zero, (9.5, 3.4), {"ranks": ([1, 2, 4, 8, 16, 64], 4)})
