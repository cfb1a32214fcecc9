"""Grouped-query attention: query heads share keys and values (Ainslie et al. 2023)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from minitrain.lab.drawing.display import BLUE, GREEN, ORANGE, PINK
from minitrain.lab.drawing.figures import lighter
from minitrain.lab.drawing.shapes import bare, box, say
from minitrain.lab.ideas.schematic import Schematic

if TYPE_CHECKING:
    from matplotlib.axes import Axes

HEADS = 8
HUES = (BLUE, ORANGE, GREEN, PINK)
LEFT, WIDE = 2.4, 1.0


def draw_grouped_heads(ax: Axes, key_heads: int) -> None:
    bare(ax, LEFT + WIDE * HEADS + 0.2, 2.6)
    say(ax, LEFT - 0.2, 0.5, "query heads", ha="right")
    say(ax, LEFT - 0.2, 2.0, "key and value heads", ha="right")
    share = HEADS // key_heads
    for group in range(key_heads):
        hue = lighter(HUES[group % len(HUES)], 0.35 * (group // len(HUES)))
        left = LEFT + WIDE * share * group
        middle = left + WIDE * share / 2
        for head in range(group * share, (group + 1) * share):
            x = LEFT + WIDE * head
            ax.plot([x + WIDE / 2, middle], [0.75, 1.75], color=hue, linewidth=1.6, zorder=0)
            box(ax, x + 0.1, 0.25, WIDE - 0.2, 0.5, hue, str(head))
        box(ax, middle - 0.4, 1.75, 0.8, 0.5, hue, str(group))


def say_grouped_heads(key_heads: int) -> str:
    share = HEADS // key_heads
    names = {1: "multi-query attention", HEADS: "multi-head attention"}
    name = names.get(key_heads, "grouped-query attention")
    cache = f"1/{share} of the cache" if share > 1 else "the whole cache"
    return (
        f"{HEADS} query heads, {key_heads} of keys and values: {name}, {cache}. "
        "Lines join each query head to the key head that it reads: neighbours share one, "
        f"query head h reads key head h // {share}."
    )


grouped_heads = Schematic(
    draw_grouped_heads, say_grouped_heads, (9.5, 2.8), {"key_heads": ([1, 2, 4, 8], 2)}
)
