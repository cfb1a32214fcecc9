"""Schematics of lab e04, mixed precision."""

from __future__ import annotations

import math
from typing import NamedTuple

from matplotlib.axes import Axes

from minitrain.lab.drawing.colors import BLUE, GREEN, ORANGE, PALE, PINK, lighter
from minitrain.lab.drawing.shapes import bare, box, write
from minitrain.lab.ideas.schematic import schematic


class Format(NamedTuple):
    name: str
    exponent: int  # bits
    mantissa: int  # mantissa bits
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
LOWEST, HIGHEST = -40, 40  # exponents shown; BF16 extends beyond both ends


def place(exponent: float) -> float:
    """x of 2**exponent."""
    inside = min(max(exponent, LOWEST), HIGHEST)
    return LEFT + WIDE * (inside - LOWEST) / (HIGHEST - LOWEST)


def alt_number_lines() -> str:
    bits = ", ".join(f"{form.name} {form.exponent} + {form.mantissa}" for form in FORMATS)
    return f"""Range comes from exponent bits, precision from mantissa bits. Bits of both: {bits}.
    FP16 reaches from 2^-14 to 65,504 in steps of 1/1024 between 1 and 2; BF16 from 2^-126 to 3.4 *
    10^38 in steps of 1/128; E4M3 from 2^-6 to 448 in steps of 1/8; E5M2 from 2^-14 to 57,344 in
    steps of 1/4. Below its smallest normal number each goes on for a few powers of two with fewer
    digits."""


@schematic(alt_number_lines, 9.5, 5.2)
def number_lines(ax: Axes) -> None:
    """Range and precision of floating-point formats.

    Above, the powers of two between the smallest and the largest number of each; below, all its
    numbers from 1 to 2, given by the mantissa's bits (IEEE 754; Micikevicius et al. 2022 for FP8).
    """
    fine = 300  # distinguishable strokes
    high = 0.62
    bare(ax, LEFT + WIDE + 1.55, 6.45)
    write(ax, LEFT, 0.25, "how far: powers of two", 9, ha="left", fontweight="bold")
    for row, form in enumerate(FORMATS):
        y = 0.5 + high * row
        top, bottom = math.log2(form.largest), form.smallest
        write(ax, LEFT - 0.15, y + 0.1, form.name, ha="right", fontweight="bold")
        bits = f"{form.exponent} + {form.mantissa} bits"
        write(ax, LEFT - 0.15, y + 0.36, bits, 8.5, ha="right")
        pale = lighter(form.color, 0.6)
        subnormal = place(bottom - form.mantissa)
        box(ax, subnormal, y, place(bottom) - subnormal, 0.44, pale)
        most = f"{form.largest:,.5g}" if top < 20 else "$3.4 \\cdot 10^{38}$"
        words = f"$2^{{{bottom}}}$ … {most}"
        box(ax, place(bottom), y, place(top) - place(bottom), 0.44, form.color, words, 10)
    for x, words in ((LEFT + 0.2, "←"), (LEFT + WIDE - 0.2, "→")):  # only BF16 extends further
        write(ax, x, 0.5 + high + 0.22, words, 12, color="black")
    y = 0.5 + high * len(FORMATS)
    for exponent in range(LOWEST, HIGHEST + 1, 10):
        ax.plot([place(exponent)] * 2, [0.45, y], color="#dddddd", linewidth=0.8, zorder=0)
        write(ax, place(exponent), y + 0.17, f"$2^{{{exponent}}}$", 10)
    legend = "bits: of exponent + mantissa    pale: subnormal, fewer digits    arrows: BF16 goes on"
    write(ax, LEFT, y + 0.52, legend, ha="left")
    write(ax, LEFT, 3.95, "how close: all numbers from 1 to 2", 9, ha="left", fontweight="bold")
    for row, form in enumerate(FORMATS):
        y, count = 4.2 + 0.5 * row, 2**form.mantissa
        write(ax, LEFT - 0.15, y + 0.2, form.name, ha="right", fontweight="bold")
        if count > fine:
            box(ax, LEFT, y + 0.03, WIDE, 0.34, form.color)
        else:
            wide = min(1.6, 300 / count)
            for x in (LEFT + WIDE * number / count for number in range(count + 1)):
                ax.plot([x, x], [y + 0.03, y + 0.37], color=form.color, linewidth=wide)
        write(ax, LEFT + WIDE + 0.1, y + 0.2, f"steps of 1/{count}", ha="left")
    for value in (1, 1.25, 1.5, 1.75, 2):
        write(ax, LEFT + WIDE * (value - 1), 6.3, f"{value:g}")


EIGHTHS, DRAWS = 8, 16


def goes_up(eighths: int) -> float:
    """Probability that stochastic rounding goes up, `eighths` of the way between neighbours."""
    return eighths / EIGHTHS


def alt_rounding(eighths: int) -> str:
    near = "up" if goes_up(eighths) > 0.5 else "down"
    return f"""Rounding x, which is {eighths}/{EIGHTHS} of the way up. To the nearest, all 16
    roundings go {near}; by chance {round(DRAWS * goes_up(eighths))} of 16 go up, so that their mean
    is x itself."""


@schematic(alt_rounding, 9.5, 2.5, eighths=(1, EIGHTHS - 1, 2))
def rounding(ax: Axes, eighths: int) -> None:
    """Rounding to nearest and stochastic rounding of a number between two neighbours.

    Stochastic rounding goes up with probability equal to the relative distance from the lower
    neighbour, so that the expected value is the number itself (Gupta et al. 2015).
    """
    left, wide = 0.9, 4.6
    bare(ax, 12.6, 3.0)
    share = goes_up(eighths)
    for place, words in ((0, "below"), (1, "above")):
        x = left + wide * place
        ax.plot([x, x], [0.9, 1.7], color="#444444", linewidth=2)
        write(ax, x, 2.05, f"neighbour\n{words}")
    write(ax, left + wide / 2, 2.65, "neighbours: two numbers that the format has")
    ax.plot([left, left + wide], [1.3, 1.3], color="#999999", linewidth=1)
    ax.plot([left + wide * share], [1.3], "o", color=ORANGE, markersize=10)
    write(ax, left + wide * share, 0.7, "x", 11, fontweight="bold")
    by_chance = [(7 * n % DRAWS) < share * DRAWS for n in range(DRAWS)]
    title = f"by chance, up with p = {eighths}/{EIGHTHS}"
    rows = (("to the nearest", [share > 0.5] * DRAWS), (title, by_chance))
    for row, (how, ups) in enumerate(rows):
        y = 0.75 + 1.1 * row
        mean = sum(ups) / DRAWS
        write(ax, 6.9, y - 0.3, f"{how}: mean {mean:g} of the way", 9, ha="left", fontweight="bold")
        hue = GREEN if row else BLUE
        for n, up in enumerate(ups):
            place = 6.9 + 0.34 * n, y - 0.05, 0.3, 0.4
            box(ax, *place, hue if up else PALE, edgecolor="#999999")
    write(ax, 6.9, 2.65, "16 roundings of x: filled goes up, pale goes down", ha="left")


ROWS, COLUMNS = 4, 16
TILES = {"one scale": (ROWS, COLUMNS), "1 x 4 blocks": (1, 4), "2 x 4 blocks": (2, 4)}


def sharing(tile: str) -> int:
    """The number of ordinary values that share the outlier's scale."""
    rows, columns = TILES[tile]
    return rows * columns - 1


def alt_block_scales(tile: str) -> str:
    high, wide = TILES[tile]
    count = ROWS * COLUMNS // (high * wide)
    each = f"each of the {count} tiles has one scale" if count > 1 else "it has one scale"
    return f"""A matrix of {ROWS} x {COLUMNS} numbers, {tile}: {sharing(tile)} share the outlier's
    scale. A tile is {high} x {wide}; {each}, set by its own largest magnitude."""


@schematic(alt_block_scales, 9.5, 2.4, tile=(list(TILES), "1 x 4 blocks"))
def block_scales(ax: Axes, tile: str) -> None:
    """One scale for a whole matrix, or one for each tile: how many values an outlier affects.

    A scale is the largest magnitude of its tile over the largest number of the format. If an
    outlier sets it, the tile's other numbers share the coarse scale.
    """
    outlier = (1, 5)  # its row and column
    left, top, side = 0.4, 0.4, 0.46
    bare(ax, 12.2, top + side * ROWS + 0.7)
    high, wide = TILES[tile]
    home = outlier[0] // high, outlier[1] // wide
    for row in range(ROWS):
        for column in range(COLUMNS):
            place = row // high, column // wide
            gap_x, gap_y = 0.12 * place[1], 0.1 * place[0]
            is_outlier = (row, column) == outlier
            color = lighter(ORANGE if place == home else BLUE, 0.6)
            color = ORANGE if is_outlier else color
            x, y = left + side * column + gap_x, top + side * row + gap_y
            words = "10⁵" if is_outlier else ""
            box(ax, x, y, side - 0.04, side - 0.04, color, words, 10)
    count = ROWS * COLUMNS // (high * wide)
    write(ax, 8.6, 0.8, f"scales kept: {count}", 9.5, ha="left", va="top")
    words = f"under the outlier's coarse scale:\n{sharing(tile)} of the {ROWS * COLUMNS - 1} others"
    write(ax, 8.6, 0.8 + 0.6, words, 9.5, ha="left", va="top")
    legend = "dark: the outlier    orange: under its scale"
    legend += "    blue: each block has a scale of its own" if count > 1 else ""
    write(ax, left, top + side * ROWS + 0.54, legend, ha="left")
