"""What floating-point formats can say: how far they reach, and how close their numbers stand.

Above, the powers of two between the smallest and the largest number of each; below, all numbers
from 1 to 2, as many as the mantissa has bits for (IEEE 754; Micikevicius et al. 2022 for FP8).
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

from minitrain.lab.drawing.display import BLUE, GREEN, ORANGE, PINK
from minitrain.lab.drawing.figures import lighter
from minitrain.lab.drawing.shapes import bare, box, say
from minitrain.lab.ideas.schematic import Schematic

if TYPE_CHECKING:
    from matplotlib.axes import Axes


class Format(NamedTuple):
    name: str
    exponent: int  # bits
    mantissa: int  # bits behind the point
    smallest: int  # the exponent of the smallest normal number
    largest: float
    color: str


FORMATS = (
    Format("FP16", 5, 10, -14, 65504.0, BLUE),
    Format("BF16", 8, 7, -126, (2 - 2**-7) * 2.0**127, ORANGE),
    Format("E4M3", 4, 3, -6, 448.0, GREEN),
    Format("E5M2", 5, 2, -14, 57344.0, PINK),
)
LEFT, WIDE = 1.3, 10.0
FINE = 300  # strokes that can still be told apart
LOWEST, HIGHEST = -40, 40  # exponents in the picture; BF16 goes on to both sides
HIGH = 0.62


def place(exponent: float) -> float:
    """x of 2**exponent."""
    inside = min(max(exponent, LOWEST), HIGHEST)
    return LEFT + WIDE * (inside - LOWEST) / (HIGHEST - LOWEST)


def draw_number_lines(ax: Axes) -> None:
    bare(ax, LEFT + WIDE + 1.55, 6.45)
    say(ax, LEFT, 0.25, "how far: powers of two", 9, ha="left", fontweight="bold")
    for row, form in enumerate(FORMATS):
        y = 0.5 + HIGH * row
        top, bottom = math.log2(form.largest), form.smallest
        say(ax, LEFT - 0.15, y + 0.1, form.name, ha="right", fontweight="bold")
        bits = f"{form.exponent} + {form.mantissa} bits"
        say(ax, LEFT - 0.15, y + 0.36, bits, 8.5, ha="right")
        pale = lighter(form.color, 0.6)
        subnormal = place(bottom - form.mantissa)
        box(ax, subnormal, y, place(bottom) - subnormal, 0.44, pale)
        words = (
            f"$2^{{{bottom}}}$ … {form.largest:,.5g}"
            if top < 20
            else f"$2^{{{bottom}}}$ … $3.4 \\cdot 10^{{38}}$"
        )
        box(ax, place(bottom), y, place(top) - place(bottom), 0.44, form.color, words, 10)
    for x, words in ((LEFT + 0.2, "←"), (LEFT + WIDE - 0.2, "→")):  # BF16 alone is cut off
        say(ax, x, 0.5 + HIGH + 0.22, words, 12, color="black")
    y = 0.5 + HIGH * len(FORMATS)
    for exponent in range(LOWEST, HIGHEST + 1, 10):
        ax.plot([place(exponent)] * 2, [0.45, y], color="#dddddd", linewidth=0.8, zorder=0)
        say(ax, place(exponent), y + 0.17, f"$2^{{{exponent}}}$", 10)
    legend = "bits: of exponent + mantissa    pale: subnormal, fewer digits    arrows: BF16 goes on"
    say(ax, LEFT, y + 0.52, legend, ha="left")
    say(ax, LEFT, 3.95, "how close: all numbers from 1 to 2", 9, ha="left", fontweight="bold")
    for row, form in enumerate(FORMATS):
        y, count = 4.2 + 0.5 * row, 2**form.mantissa
        say(ax, LEFT - 0.15, y + 0.2, form.name, ha="right", fontweight="bold")
        if count > FINE:
            box(ax, LEFT, y + 0.03, WIDE, 0.34, form.color)
        else:
            wide = min(1.6, 300 / count)
            for x in (LEFT + WIDE * number / count for number in range(count + 1)):
                ax.plot([x, x], [y + 0.03, y + 0.37], color=form.color, linewidth=wide)
        say(ax, LEFT + WIDE + 0.1, y + 0.2, f"steps of 1/{count}", ha="left")
    for value in (1, 1.25, 1.5, 1.75, 2):
        say(ax, LEFT + WIDE * (value - 1), 6.3, f"{value:g}")


def say_number_lines() -> str:
    bits = ", ".join(f"{form.name} {form.exponent} + {form.mantissa}" for form in FORMATS)
    return (
        f"Range comes from exponent bits, precision from mantissa bits. Bits of both: {bits}. "
        "FP16 reaches from 2^-14 to 65,504 in steps of 1/1024 between 1 and 2; BF16 from "
        "2^-126 to 3.4 * 10^38 in steps of 1/128; E4M3 from 2^-6 to 448 in steps of 1/8; "
        "E5M2 from 2^-14 to 57,344 in steps of 1/4. Below its smallest normal number each goes on "
        "for a few powers of two with fewer digits."
    )


number_lines = Schematic(draw_number_lines, say_number_lines, (9.5, 5.2))
