"""A block of weights on its way into bytes: over its largest, to the nearest level, two a byte."""

from __future__ import annotations

from typing import TYPE_CHECKING

from minitrain.lab.drawing.display import BLUE, GREEN, ORANGE
from minitrain.lab.drawing.figures import lighter
from minitrain.lab.drawing.shapes import bare, box, say
from minitrain.lab.ideas.quantiles import LEVELS
from minitrain.lab.ideas.schematic import Schematic

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
    bare(ax, LEFT + 8 * SIDE + 0.8, 4.9)
    values, size = weights(outlier), BLOCKS[block]
    scale, code = scales(values, size), codes(values, size)
    back = [LEVELS["NF4"][c] * s for c, s in zip(code, scale)]
    rows = {
        "weights": [f"{value:.2f}" for value in values],
        "over the block's largest": [f"{value / s:.2f}" for value, s in zip(values, scale)],
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
            box(ax, LEFT + SIDE * column + gap, y, SIDE - 0.08, HIGH, color, text, 8)
    y = 0.3 + 0.85 * 3
    say(ax, LEFT - 0.2, y + HIGH / 2, "bytes, two codes each", 9, ha="right")
    for pair in range(4):
        high, low = code[2 * pair], code[2 * pair + 1]
        x, words = LEFT + 2 * SIDE * pair + 0.3 * (2 * pair // size), f"{high:04b} {low:04b}"
        box(ax, x, y, 2 * SIDE - 0.08, HIGH, GREEN, words, 9)
    legend = (
        f"orange: the largest, which is the block's scale ({8 // size} x 4 bytes beside the codes)"
    )
    say(ax, LEFT, 4.72, legend, 8, ha="left")


def say_packed_block(block: str, outlier: str) -> str:
    values, size = weights(outlier), BLOCKS[block]
    found = codes(values, size)
    zeros = sum(code == 7 and value != 0 for code, value in zip(found, values))
    lost = f"{zeros} weights beside 0 become 0" if zeros else "only the 0 becomes 0"
    return (
        f"Eight weights in blocks of {size}: {lost}. The codes are "
        f"{', '.join(map(str, found))}, and the scales "
        f"{', '.join(f'{s:.2f}' for s in sorted(set(scales(values, size))))}. Two codes of four "
        "bits share a byte, the first in its high half."
    )


packed_block = Schematic(
    draw_packed_block,
    say_packed_block,
    (9.5, 4.2),
    {"block": (list(BLOCKS), "8"), "outlier": (["no", "yes"], "no")},
)
