"""What a weight of four bits costs in all: its code, its share of a scale, and of the scales'."""

from __future__ import annotations

from typing import TYPE_CHECKING

from minitrain.lab.drawing.display import BLUE, GREEN, ORANGE
from minitrain.lab.drawing.shapes import bare, box, say
from minitrain.lab.ideas.schematic import Schematic

if TYPE_CHECKING:
    from matplotlib.axes import Axes

LEFT, SCALE, HIGH = 2.7, 1.15, 0.6  # a bit is 1.15 wide
OUTER = 256  # scales that share one of 32 bits


def parts(size: int) -> dict[str, tuple[float, ...]]:
    """Bits a weight: (code, scale) in float32, and (code, scale, scale of scales) in 8 bits."""
    return {
        "float32 scales": (4.0, 32 / size),
        "8-bit scales": (4.0, 8 / size, 32 / (size * OUTER)),
    }


def draw_scale_bits(ax: Axes, block: int) -> None:
    bare(ax, LEFT + 5.2 * SCALE + 3.3, 3.0)
    for row, (words, bits) in enumerate(parts(block).items()):
        y, x = 0.4 + 0.95 * row, LEFT
        say(ax, LEFT - 0.2, y + HIGH / 2, words, 9, ha="right", fontweight="bold")
        for part, color in zip(bits, (BLUE, ORANGE)):
            box(ax, x, y, SCALE * part, HIGH, color, f"{part:g}" if part > 0.3 else "")
            x += SCALE * part
        if len(bits) > 2:  # a thousandth of the bar
            ax.plot([x + 0.03, x + 0.03], [y + 0.03, y + HIGH - 0.03], color=GREEN, linewidth=3)
        words = " + ".join(f"{part:.4f}".rstrip("0").rstrip(".") for part in bits)
        words = f"{words} = {sum(bits):.3f} bits a weight"
        say(ax, x + 0.2, y + HIGH / 2, words, 9, ha="left")
    legend = (
        f"blue: the code    orange: the scale of {block} weights    "
        f"green: the scale of {OUTER} scales, drawn far too wide"
    )
    say(ax, LEFT, 2.65, legend, 9, ha="left")


def say_scale_bits(block: int) -> str:
    single, double = (sum(bits) for bits in parts(block).values())
    return (
        f"Blocks of {block}: {single:.3f} bits a weight become {double:.3f}. The code has 4; a "
        f"scale in float32 adds 32/{block} = {32 / block:g}; in 8 bits 8/{block} = "
        f"{8 / block:g}, and the scale of {OUTER} scales {32 / (block * OUTER):.4f}."
    )


scale_bits = Schematic(
    draw_scale_bits, say_scale_bits, (9.5, 2.8), {"block": ([32, 64, 128, 256], 64)}
)
