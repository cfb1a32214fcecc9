"""Schematics of lab e07, qlora."""

from __future__ import annotations

import math
from collections import namedtuple
from itertools import pairwise

from matplotlib.axes import Axes

from minitrain.lab.drawing.colors import BLUE, GREEN, ORANGE, PALE, lighter
from minitrain.lab.drawing.shapes import arrow, bare, box, write
from minitrain.lab.ideas.schematic import schematic
from minitrain.words import plural

LARGEST = 2.6  # standard deviations: mean maximum of 64 normal numbers
FP4 = (0, 0.0625, 2, 3, 4, 6, 8, 12)  # divided by the largest, and their negatives
LEVELS = {
    "INT4": tuple(step / 7 for step in range(-7, 8)),
    "FP4": tuple(sorted({sign * size / 12 for sign in (-1, 1) for size in FP4})),
    "NF4": (
        -1.0, -0.6962, -0.5251, -0.3949, -0.2844, -0.1848, -0.0911, 0.0,
        0.0796, 0.1609, 0.2461, 0.3379, 0.4407, 0.5626, 0.7230, 1.0,
    ),
}  # fmt: skip
LEFT, WIDE, GROUND = 0.5, 10.0, 2.5  # of the curve; below it are the shares


def below(x: float) -> float:
    """The share of weights below x, in units of the largest magnitude."""
    return 0.5 * (1 + math.erf(x * LARGEST / math.sqrt(2)))


def shares(datatype: str) -> list[float]:
    """The share of weights rounded to each level."""
    levels = LEVELS[datatype]
    middles = [(low + high) / 2 for low, high in pairwise(levels)]
    edges = [0.0, *map(below, middles), 1.0]
    return [high - low for low, high in pairwise(edges)]


def place(x: float) -> float:
    return LEFT + WIDE * (x + 1) / 2


def alt_quantile_levels(datatype: str) -> str:
    got, levels = shares(datatype), LEVELS[datatype]
    outer = sum(share for share, level in zip(got, levels) if abs(level) > 0.6)
    return f"""{datatype}: {len(levels)} levels, and the fullest gets {max(got):.0%} of the weights.
    The weights of a block are normal, their largest is 1. Levels beyond 0.6 get {outer:.0%}
    together. A bar below each level is as long as its share; dotted is how long all would be if
    they were equal."""


@schematic(alt_quantile_levels, 9.5, 4.4, datatype=(list(LEVELS), "INT4"))
def quantile_levels(ax: Axes, datatype: str) -> None:
    """A datatype's levels over the weights of a block, and the share of weights rounded to each.

    Weights are assumed normal; a block of 64 is divided by its largest magnitude, on average 2.6
    standard deviations. A weight goes to its nearest level.
    """
    high = 1.9
    bare(ax, LEFT + WIDE + 0.5, GROUND + 2.95)
    xs = [step / 100 - 1 for step in range(201)]
    heights = [GROUND - high * math.exp(-((x * LARGEST) ** 2) / 2) for x in xs]
    across = [place(x) for x in xs]
    ax.fill_between(across, heights, GROUND, color=lighter(BLUE, 0.7), linewidth=0)
    words = "how the weights of a block lie, divided by their largest magnitude"
    write(ax, LEFT, 0.45, words, 9, ha="left")
    for level, share in zip(LEVELS[datatype], shares(datatype)):
        x = place(level)
        ax.plot([x, x], [GROUND - 0.1, GROUND + 0.2], color=ORANGE, linewidth=2)
        box(ax, x - 0.11, GROUND + 0.65, 0.22, 9 * share, BLUE)
    for value in (-1, -0.5, 0, 0.5, 1):
        write(ax, place(value), GROUND + 0.42, f"{value:g}", 8.5)
    equal = GROUND + 0.65 + 9 / len(LEVELS[datatype])
    ax.plot([LEFT - 0.2, LEFT + WIDE + 0.2], [equal, equal], ":", color="#444444")
    legend = "orange: a level    blue bar: the share of all weights that is rounded to it    "
    write(ax, LEFT, GROUND + 2.75, legend + "dotted: equal shares", 9, ha="left")


WEIGHTS, OUTLIER = (0.02, -0.05, 0.01, 0.08, -0.03, 0.04, 0.00, -0.06), 0.90
MARGIN, SIDE, HIGH = 2.6, 1.02, 0.5
BLOCKS = {"8": 8, "4": 4}


def weights(outlier: str) -> tuple[float, ...]:
    return (*WEIGHTS[:5], OUTLIER if outlier == "yes" else WEIGHTS[5], *WEIGHTS[6:])


def scales(values: tuple[float, ...], size: int) -> list[float]:
    """Each weight's scale: the largest magnitude of its block."""
    blocks = [values[i : i + size] for i in range(0, len(values), size)]
    return [max(map(abs, block)) for block in blocks for _ in block]


def codes(values: tuple[float, ...], size: int) -> list[int]:
    levels = LEVELS["NF4"]
    divided = [value / scale for value, scale in zip(values, scales(values, size))]
    return [min(range(16), key=lambda code, x=x: abs(levels[code] - x)) for x in divided]


def _levels(ax: Axes, y: float) -> None:
    """A line with a tick for each level, and the codes of three of them."""
    wide = 4 * SIDE - 0.04
    write(ax, MARGIN - 0.2, y, "the 16 levels (NF4)", 9, ha="right")
    ax.plot([MARGIN, MARGIN + 2 * wide], [y, y], color="#bbbbbb", linewidth=1, zorder=0)
    for code, level in enumerate(LEVELS["NF4"]):
        x = MARGIN + wide * (1 + level)
        ax.plot([x, x], [y - 0.13, y + 0.13], color=BLUE, linewidth=2)
        if level in (-1, 0, 1):
            ha = {-1: "left", 0: "center", 1: "right"}[int(level)]
            write(ax, x, y + 0.33, f"{level:g} is {code:04b}", 8.5, ha=ha)


def alt_packed_block(block: str, outlier: str) -> str:
    values, size = weights(outlier), BLOCKS[block]
    found = codes(values, size)
    zeros = sum(code == 7 and value != 0 for code, value in zip(found, values))
    shared = "one scale for all" if size == 8 else f"a scale for each {size}"
    verb = "becomes" if zeros == 1 else "become"
    lost = f"{plural(zeros, 'small weight')} {verb} 0" if zeros else "no small weight becomes 0"
    return f"""Eight weights as codes of four bits, {shared}: {lost}. The codes are
    {", ".join(map(str, found))}, each that of the nearest of 16 levels, which lie closer near 0.
    The scales are {", ".join(f"{s:.2f}" for s in sorted(set(scales(values, size))))}. Two codes
    share a byte, the first in its high half."""


@schematic(alt_packed_block, 9.5, 4.8, block=(list(BLOCKS), "8"), outlier=(["no", "yes"], "no"))
def packed_block(ax: Axes, block: str, outlier: str) -> None:
    """Packing a block of weights: scaled, rounded to the nearest level, two per byte."""
    bare(ax, MARGIN + 8 * SIDE + 0.8, 5.75)
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
        write(ax, MARGIN - 0.2, y + HIGH / 2, words, 9, ha="right")
        for column, text in enumerate(texts):
            gap = 0.3 * (column // size)
            largest = abs(values[column]) == scale[column]
            color = lighter(ORANGE if largest and row < 2 else BLUE, 0.6)
            box(ax, MARGIN + SIDE * column + gap, y, SIDE - 0.08, HIGH, color, text, 9)
    y = 0.3 + 0.85 * 3
    write(ax, MARGIN - 0.2, y + HIGH / 2, "bytes, two codes each", 9, ha="right")
    for pair in range(4):
        high, low = code[2 * pair], code[2 * pair + 1]
        x, words = MARGIN + 2 * SIDE * pair + 0.3 * (2 * pair // size), f"{high:04b} {low:04b}"
        box(ax, x, y, 2 * SIDE - 0.08, HIGH, GREEN, words, 9)
    _levels(ax, 4.75)
    legend = "orange: the block's largest magnitude, which is its scale "
    legend += f"({8 // size} x 4 bytes beside the codes)"
    write(ax, MARGIN, 5.55, legend, 8.5, ha="left")


OUTER = 256  # scales that share a 32-bit scale


def parts(size: int) -> dict[str, tuple[float, ...]]:
    """Bits a weight: (code, scale) in float32, and (code, scale, scale of scales) in 8 bits."""
    return {
        "float32 scales": (4.0, 32 / size),
        "8-bit scales": (4.0, 8 / size, 32 / (size * OUTER)),
    }


def alt_scale_bits(block: int) -> str:
    single, double = (sum(bits) for bits in parts(block).values())
    return f"""Blocks of {block}: {single:.3f} bits a weight become {double:.3f}. The code has 4; a
    scale in float32 adds 32/{block} = {32 / block:g}; in 8 bits 8/{block} = {8 / block:g}, and the
    scale of {OUTER} scales {32 / (block * OUTER):.4f}."""


@schematic(alt_scale_bits, 9.5, 2.8, block=([32, 64, 128, 256], 64))
def scale_bits(ax: Axes, block: int) -> None:
    """The full cost of a four-bit weight: its code, its share of a scale, and of the scale's
    scale."""
    left, scale, high = 2.7, 1.15, 0.6  # a bit is 1.15 wide
    bare(ax, left + 5.2 * scale + 3.3, 3.0)
    for row, (words, bits) in enumerate(parts(block).items()):
        y, x = 0.4 + 0.95 * row, left
        write(ax, left - 0.2, y + high / 2, words, 9, ha="right", fontweight="bold")
        for part, color in zip(bits, (BLUE, ORANGE)):
            box(ax, x, y, scale * part, high, color, f"{part:g}" if part > 0.3 else "")
            x += scale * part
        if len(bits) > 2:  # a thousandth of the bar
            ax.plot([x + 0.03, x + 0.03], [y + 0.03, y + high - 0.03], color=GREEN, linewidth=3)
        words = " + ".join(f"{part:.4f}".rstrip("0").rstrip(".") for part in bits)
        words = f"{words} = {sum(bits):.3f} bits a weight"
        write(ax, x + 0.2, y + high / 2, words, 9, ha="left")
    legend = f"blue: the code    orange: the scale of {block} weights    "
    legend += f"green: the scale of {OUTER} scales, drawn far too wide"
    write(ax, left, 2.65, legend, 9, ha="left")


WAYS = ("autograd keeps it", "made again")
BITS = {"codes": 4.127, "floats": 32.0}  # float32, as the lab computes


def held(way: str) -> float:
    """Bits per weight over all layers, at the end of forward."""
    return BITS["codes"] + (BITS["floats"] if way == WAYS[0] else 0)


def alt_made_again(way: str) -> str:
    count = "every layer's" if way == WAYS[0] else "no layer's"
    again = "once" if way == WAYS[0] else "twice"
    return f"""Between forward and backward {count} weight waits in floats: {held(way):.1f} bits a
    weight are held. Each Ŵ is made {again} from its codes. Forward multiplies by its transpose,
    backward by itself; a frozen weight needs no gradient, and x is not kept."""


@schematic(alt_made_again, 9.8, 3.4, way=(list(WAYS), WAYS[0]))
def made_again(ax: Axes, way: str) -> None:
    """A frozen four-bit layer between forward and backward: keeping its dequantized weight, or
    nothing."""
    layers = 3
    left, step, wide, high = 0.9, 1.75, 1.45, 0.55
    bare(ax, left + 2 * layers * step + 0.6, 4.1)
    keeps = way == WAYS[0]
    for turn in range(2 * layers):
        x, backward = left + step * turn, turn >= layers
        layer = 2 * layers - 1 - turn if backward else turn
        gap = 0.25 if backward else 0.0
        words = f"dx = dy Ŵ{'₁₂₃'[layer]}" if backward else f"y = x Ŵ{'₁₂₃'[layer]}ᵀ"
        box(ax, x + gap, 0.6, wide, high, GREEN if backward else BLUE, words, 9)
        made = not (backward and keeps)
        middle = x + gap + wide / 2
        arrow(ax, (middle, 1.53), (middle, 1.17))
        if made:
            arrow(ax, (middle, 2.68), (middle, 2.12))
        floats = "Ŵ in floats" if made else "still there"
        color = ORANGE if made or keeps else PALE
        box(ax, x + gap, 1.55, wide, high, color, floats, 9)
        box(ax, x + gap, 2.7, wide, high, PALE, "codes, scales", 9)
    write(ax, left, 0.3, "forward", 9, ha="left", fontweight="bold")
    write(ax, left + step * layers + 0.25, 0.3, "backward", 9, ha="left", fontweight="bold")
    lives = "until its backward" if keeps else "for one product"
    legend = f"orange: floats of {BITS['floats']:g} bits, each lives {lives}    "
    write(ax, left, 3.75, legend + f"grey: {BITS['codes']} bits, always there", 9, ha="left")


SHOWN = LEVELS["NF4"][6:12]  # six neighbours
AT = 2  # the weight's level among them
EDGE, SPAN = 0.9, 9.2


def merged(percent: int) -> float:
    """Base plus adapter: `percent` of the way to the next level."""
    return SHOWN[AT] + percent / 100 * (SHOWN[AT + 1] - SHOWN[AT])


def rounded(percent: int) -> float:
    return min(SHOWN, key=lambda level: abs(level - merged(percent)))


def spot(x: float) -> float:
    return EDGE + SPAN * (x - SHOWN[0]) / (SHOWN[-1] - SHOWN[0])


def alt_rounded_away(adapter: int) -> str:
    error = (rounded(adapter) - merged(adapter)) / (SHOWN[AT + 1] - SHOWN[AT])
    fate = "is gone" if rounded(adapter) == SHOWN[AT] else "is a whole step"
    return f"""An adapter that moves a weight {adapter}% of the way to the next level {fate} after
    rounding. The base lies on {SHOWN[AT]:.3f}, with the adapter it is {merged(adapter):.3f}, and
    rounded anew {rounded(adapter):.3f}: wrong by {abs(error):.0%} of the distance of two levels."""


@schematic(alt_rounded_away, 9.5, 3.4, adapter=([10, 30, 45, 60, 90], 30))
def rounded_away(ax: Axes, adapter: int) -> None:
    """The merge trap: a weight's update against the distance of two levels.

    A weight of the quantized base lies exactly on a level. The adapter moves it part of the way to
    the next; rounding to the nearest level loses the update, or overshoots.
    """
    bare(ax, EDGE + SPAN + 1.0, 3.9)
    for row, title in enumerate(("base and adapter, 16 bits", "rounded to 4 bits anew")):
        y = 1.15 + 1.5 * row
        ends = [EDGE - 0.3, EDGE + SPAN + 0.3]
        ax.plot(ends, [y, y], color="#777777", linewidth=1, zorder=0)
        for level in SHOWN:
            ax.plot([spot(level)] * 2, [y - 0.15, y + 0.15], color=BLUE, linewidth=2, zorder=0)
            if row:  # the same above, where an arrow passes
                write(ax, spot(level), y + 0.35, f"{level:.3f}", 9)
        write(ax, EDGE - 0.3, y - 0.75, title, 9, ha="left", fontweight="bold")
    x, end = spot(SHOWN[AT]), spot(merged(adapter))
    box(ax, x - 0.07, 1.08, 0.14, 0.14, BLUE)
    arrow(ax, (x, 0.95), (end + 0.001, 0.95), ORANGE)
    box(ax, end - 0.07, 1.08, 0.14, 0.14, ORANGE)
    box(ax, spot(rounded(adapter)) - 0.07, 2.58, 0.14, 0.14, GREEN)
    arrow(ax, (end, 1.25), (spot(rounded(adapter)), 2.5), GREEN)
    legend = "blue: levels, and a weight of the base    orange: with its adapter    green: rounded"
    write(ax, EDGE - 0.3, 3.65, legend, 9, ha="left")


PAGES, ROUNDS = 5, 3


Moment = namedtuple("Moment", "page is_fault resident")  # a touch; resident: oldest first


def moments(frames: int) -> list[Moment]:
    resident: list[int] = []
    found = []
    for touch in range(PAGES * ROUNDS):
        page = touch % PAGES
        away = page not in resident
        resident = [*(p for p in resident if p != page), page][-frames:]
        found.append(Moment(page, away and touch >= PAGES, tuple(resident)))
    return found


def faults_a_round(frames: int) -> int:
    return sum(moment.is_fault for moment in moments(frames)) // (ROUNDS - 1)


def alt_page_table(frames: int) -> str:
    return f"""{frames} frames for {PAGES} pages: {faults_a_round(frames)} faults a step. In the
    first step all pages are made. After that an optimizer touches them in the same order in every
    step, and the one touched longest ago makes room."""


@schematic(alt_page_table, 9.5, 3.0, frames=([3, 4, 5], 4))
def page_table(ax: Axes, frames: int) -> None:
    """A page table in time: which pages are resident while an optimizer cycles through its state.

    Five pages, two rounds, frames set by the slider; the least recently used page is evicted.
    """
    left, step, high = 1.9, 0.62, 0.44
    bare(ax, left + step * PAGES * ROUNDS + 0.8, 1.0 + high * PAGES + 0.6)
    for time, moment in enumerate(moments(frames)):
        x = left + step * time + 0.25 * (time // PAGES)
        if time % PAGES == 0:
            write(ax, x, 0.25, f"step {time // PAGES + 1}", 9, ha="left", fontweight="bold")
        for page in range(PAGES):
            touched = page == moment.page
            color = PALE if page not in moment.resident else lighter(BLUE, 0.6)
            color = (ORANGE if moment.is_fault else BLUE) if touched else color
            words = "!" if touched and moment.is_fault else ""
            box(ax, x, 0.5 + high * page, step - 0.06, high - 0.06, color, words, 9)
    for page in range(PAGES):
        write(ax, left - 0.2, 0.7 + high * page, f"page {page}", 9, ha="right")
    fault, room = "orange: a fault, it was away    ", "; the page touched longest ago makes room"
    fault, room = (fault, room) if frames < PAGES else ("", "")
    legend = (
        f"pale blue: in memory    dark: touched (in step 1: made)    {fault}grey: not in memory"
    )
    write(ax, left, 0.5 + high * PAGES + 0.35, legend, 9, ha="left")
    legend = f"columns: one touch after the other{room}"
    write(ax, left, 0.5 + high * PAGES + 0.78, legend, 9, ha="left")
