"""A block of weights on its way into bytes: divided, to the nearest level, two a byte."""

from __future__ import annotations

from typing import TYPE_CHECKING

from minitrain.lab.drawing.display import BLUE, GREEN, ORANGE
from minitrain.lab.drawing.figures import lighter
from minitrain.lab.drawing.shapes import bare, box, say
from minitrain.lab.ideas.quantiles import LEVELS
from minitrain.lab.ideas.schematic import Schematic
from minitrain.words import plural

if TYPE_CHECKING:
    from matplotlib.axes import Axes

WEIGHTS = (0.02, -0.05, 0.01, 0.08, -0.03, 0.04, 0.00, -0.06)
OUTLIER = 0.90
LEFT, SIDE, HIGH = 2.6, 1.02, 0.5
BLOCKS = {"8": 8, "4": 4}


def weights(outlier: str) -> tuple[float, ...]:
    return (*WEIGHTS[:5], OUTLIER if outlier == "yes" else WEIGHTS[5], *WEIGHTS[6:])


def scales(values: tuple[float, ...], size: int) -> list[float]:
    """Each weight's: the largest magnitude of its block."""
    blocks = [values[i : i + size] for i in range(0, len(values), size)]
    return [max(map(abs, block)) for block in blocks for _ in block]


def codes(values: tuple[float, ...], size: int) -> list[int]:
    levels = LEVELS["NF4"]
    return [
        min(range(len(levels)), key=lambda code: abs(levels[code] - value / scale))
        for value, scale in zip(values, scales(values, size))
    ]


def draw_packed_block(ax: Axes, block: str, outlier: str) -> None:
    bare(ax, LEFT + 8 * SIDE + 0.8, 5.75)
    values, size = weights(outlier), BLOCKS[block]
    scale, code = scales(values, size), codes(values, size)
    back = [LEVELS["NF4"][c] * s for c, s in zip(code, scale)]
    rows = {
        "weights": [f"{value:.2f}" for value in values],
        "divided by the scale": [f"{value / s:.2f}" for value, s in zip(values, scale)],
        "code of the nearest level": [f"{c:04b}" for c in code],
        "read again": [f"{value:.3f}" for value in back],
    }
    for row, (words, texts) in enumerate(rows.items()):
        y = 0.3 + 0.85 * row + (0.85 if row == 3 else 0)
        say(ax, LEFT - 0.2, y + HIGH / 2, words, 9, ha="right")
        for column, text in enumerate(texts):
            gap = 0.3 * (column // size)
            largest = abs(values[column]) == scale[column]
            color = lighter(ORANGE if largest and row < 2 else BLUE, 0.6)
            box(ax, LEFT + SIDE * column + gap, y, SIDE - 0.08, HIGH, color, text, 9)
    y = 0.3 + 0.85 * 3
    say(ax, LEFT - 0.2, y + HIGH / 2, "bytes, two codes each", 9, ha="right")
    for pair in range(4):
        high, low = code[2 * pair], code[2 * pair + 1]
        x, words = LEFT + 2 * SIDE * pair + 0.3 * (2 * pair // size), f"{high:04b} {low:04b}"
        box(ax, x, y, 2 * SIDE - 0.08, HIGH, GREEN, words, 9)
    _levels(ax, 4.75)
    legend = "orange: the block's largest magnitude, which is its scale "
    legend += f"({8 // size} x 4 bytes beside the codes)"
    say(ax, LEFT, 5.55, legend, 8.5, ha="left")


def _levels(ax: Axes, y: float) -> None:
    """A line with a tick for each level, and the codes of three of them."""
    wide = 4 * SIDE - 0.04
    say(ax, LEFT - 0.2, y, "the 16 levels (NF4)", 9, ha="right")
    ax.plot([LEFT, LEFT + 2 * wide], [y, y], color="#bbbbbb", linewidth=1, zorder=0)
    for code, level in enumerate(LEVELS["NF4"]):
        x = LEFT + wide * (1 + level)
        ax.plot([x, x], [y - 0.13, y + 0.13], color=BLUE, linewidth=2)
        if level in (-1, 0, 1):
            ha = {-1: "left", 0: "center", 1: "right"}[int(level)]
            say(ax, x, y + 0.33, f"{level:g} is {code:04b}", 8.5, ha=ha)


def say_packed_block(block: str, outlier: str) -> str:
    values, size = weights(outlier), BLOCKS[block]
    found = codes(values, size)
    zeros = sum(code == 7 and value != 0 for code, value in zip(found, values))
    shared = "one scale for all" if size == 8 else f"a scale for each {size}"
    verb = "becomes" if zeros == 1 else "become"
    lost = f"{plural(zeros, 'small weight')} {verb} 0" if zeros else "no small weight becomes 0"
    return (
        f"Eight weights as codes of four bits, {shared}: {lost}. The codes are "
        f"{', '.join(map(str, found))}, each that of the nearest of 16 levels, which lie closer "
        "near 0. The scales are "
        f"{', '.join(f'{s:.2f}' for s in sorted(set(scales(values, size))))}. Two codes share a "
        "byte, the first in its high half."
    )


packed_block = Schematic(
    draw_packed_block,
    say_packed_block,
    (9.5, 4.8),
    {"block": (list(BLOCKS), "8"), "outlier": (["no", "yes"], "no")},
)
