"""Schematics of lab e08, quantization."""

from __future__ import annotations

import math

from matplotlib.axes import Axes

from minitrain.lab.drawing.colors import BLUE, GREEN, INK, ORANGE, PALE, lighter
from minitrain.lab.drawing.shapes import arrow, bare, box, write
from minitrain.lab.ideas.schematic import schematic

GRID_WEIGHTS = (-0.5, -0.37, -0.22, -0.08, 0.05, 0.11, 0.24, 0.33, 0.46, 0.58, 0.71, 1.0)
LEFT, WIDE = 2.2, 8.0


def symmetric(bits: int) -> list[float]:
    """The levels of absmax."""
    largest = 2 ** (bits - 1) - 1
    step = max(map(abs, GRID_WEIGHTS)) / largest
    return [step * code for code in range(-largest, largest + 1)]


def moved(bits: int) -> list[float]:
    """The levels with a zero point."""
    steps = 2**bits - 1
    step = (max(GRID_WEIGHTS) - min(GRID_WEIGHTS)) / steps
    zero = round(-min(GRID_WEIGHTS) / step)
    return [step * (code - zero) for code in range(steps + 1)]


def error(levels: list[float]) -> float:
    """The root mean square error, in the weights' units."""
    squares = [min((w - level) ** 2 for level in levels) for w in GRID_WEIGHTS]
    return (sum(squares) / len(squares)) ** 0.5


def place(value: float) -> float:
    return LEFT + WIDE * (value + 1.1) / 2.2


def alt_integer_grids(bits: int) -> str:
    one, other = symmetric(bits), moved(bits)
    return f"""Twelve weights in {bits} bits: {len(one)} levels, or {len(other)} with a zero point.
    Absmax leaves levels unused where no weight lies; its error is {error(one):.3f}. A zero point
    moves the levels to the weights: error {error(other):.3f}. Both have 0 itself."""


@schematic(alt_integer_grids, 9.5, 2.8, bits=([2, 3, 4, 5], 3))
def integer_grids(ax: Axes, bits: int) -> None:
    """The levels of an integer grid: symmetric around zero, or shifted by a zero point.

    The weights are fixed, between -0.5 and 1; the number of levels varies.
    """
    bare(ax, 12.4, 3.4)
    rows = {
        "absmax: as far\non both sides": (symmetric(bits), BLUE),
        "with a zero point": (moved(bits), GREEN),
    }
    for row, (name, (levels, color)) in enumerate(rows.items()):
        y = 0.8 + 1.45 * row
        write(ax, LEFT - 0.25, y, name, 9, ha="right", fontweight="bold")
        ax.plot([place(-1.1), place(1.1)], [y, y], color="#bbbbbb", linewidth=1, zorder=0)
        for level in levels:
            ax.plot([place(level)] * 2, [y - 0.2, y + 0.2], color=color, linewidth=2)
        for w in GRID_WEIGHTS:
            level = min(levels, key=lambda level, w=w: abs(level - w))
            ax.plot([place(w)], [y - 0.48], "o", color=ORANGE, markersize=4)
            ax.plot([place(w), place(level)], [y - 0.42, y - 0.2], color="#999999", linewidth=0.8)
        words = f"0 has to be a level: code {levels.index(0)}, the zero point" if row else "0"
        write(ax, place(0), y + 0.42, words, 8.5)
        for end in (min(GRID_WEIGHTS), max(GRID_WEIGHTS)) if not row else ():
            write(ax, place(end), y + 0.42, f"{end:g}", 8.5)
        used = len({min(levels, key=lambda level, w=w: abs(level - w)) for w in GRID_WEIGHTS})
        words = f"{len(levels)} levels, {used} used\nerror (rms) {error(levels):.3f}"
        write(ax, LEFT + WIDE + 0.1, y, words, 9, ha="left")
    write(ax, LEFT, 3.15, "orange: twelve weights    bars: the levels they may take", 9, ha="left")


TOKENS, CHANNELS, FEATURES = 4, 10, 3
ORDER = (3, 7, 0)  # the channels that become outliers, one after the other
SIDE = 0.34


def outliers(count: int) -> list[int]:
    """The first `count` outlier channels, from left to right."""
    return sorted(ORDER[:count])


def matrix(ax: Axes, x: float, y: float, rows: int, columns: list[int], dark: list[int]) -> None:
    """A grid of cells, those of `dark` in orange."""
    for row in range(rows):
        for place, column in enumerate(columns):
            color = ORANGE if column in dark else lighter(BLUE, 0.5)
            box(ax, x + SIDE * place, y + SIDE * row, SIDE - 0.04, SIDE - 0.04, color)


def alt_outlier_columns(count: int) -> str:
    return f"""{count} of {CHANNELS} channels hold outliers: {CHANNELS - count} are multiplied in
    int8. The channels in which any token reaches 6 are taken out of x and of W, and multiplied in
    floating point; both results are added. No outlier is left to set a scale."""


@schematic(alt_outlier_columns, 9.5, 3.2, count=(0, len(ORDER), 2))
def outlier_columns(ax: Axes, count: int) -> None:
    """LLM.int8(): outlier columns are taken out of both matrices, and multiplied separately.

    Dettmers et al. 2022, section 3.2: T tokens times D channels, of which a few reach 6.
    """
    bare(ax, 13.2, 4.4)
    dark, every = outliers(count), list(range(CHANNELS))
    rest = [column for column in every if column not in dark]
    write(ax, 0.3, 0.5, "x: tokens x channels", 9, ha="left", fontweight="bold")
    matrix(ax, 0.3, 0.75, TOKENS, every, dark)
    write(ax, 0.3, 2.6, "W: outputs x channels", 9, ha="left", fontweight="bold")
    matrix(ax, 0.3, 2.85, FEATURES, every, dark)
    ax.plot((3.85, 3.95, 3.95, 3.85), (0.75, 0.75, 3.83, 3.83), color=INK, linewidth=1.2)
    arrow(ax, (3.95, 2.0), (4.8, 1.4))
    write(ax, 5.0, 0.5, "int8, sums in int32", 9, ha="left", fontweight="bold")
    matrix(ax, 5.0, 0.75, TOKENS, rest, [])
    write(ax, 5.1 + SIDE * len(rest), 1.4, "×", 11)
    matrix(ax, 5.3 + SIDE * len(rest), 0.9, FEATURES, rest, [])
    write(ax, 5.4 + 2 * SIDE * len(rest), 0.85, "T", 9)
    if dark:
        arrow(ax, (3.95, 2.6), (4.8, 3.3))
        write(ax, 5.0, 2.6, "floating point", 9, ha="left", fontweight="bold")
        matrix(ax, 5.0, 2.85, TOKENS, dark, dark)
        write(ax, 5.1 + SIDE * len(dark), 3.5, "×", 11)
        matrix(ax, 5.3 + SIDE * len(dark), 3.0, FEATURES, dark, dark)
        write(ax, 5.4 + 2 * SIDE * len(dark), 2.95, "T", 9)
        ax.plot((11.85, 11.95, 11.95, 11.85), (0.75, 0.75, 4.15, 4.15), color=INK, linewidth=1.2)
        write(ax, 12.15, 2.45, "+", 11)
        arrow(ax, (12.3, 2.45), (12.8, 2.45))
        write(ax, 12.95, 2.45, "y", 9, fontweight="bold")


ACTIVATIONS = (1.0, 1.5, 60.0, 0.8, 2.0, 1.2)  # max|x| of each channel
COLUMN_WEIGHTS = (0.6, 0.4, 0.5, 0.7, 0.3, 0.5)  # max|w| of each column
HIGH = 2.4


def after(alpha: float) -> tuple[list[float], list[float]]:
    """max|x| and max|w| of each channel after smoothing."""
    scales = [x**alpha / w ** (1 - alpha) for x, w in zip(ACTIVATIONS, COLUMN_WEIGHTS)]
    weights = [w * s for w, s in zip(COLUMN_WEIGHTS, scales)]
    return [x / s for x, s in zip(ACTIVATIONS, scales)], weights


def spread(values: list[float]) -> float:
    """The largest over the smallest."""
    return max(values) / min(values)


def height(value: float) -> float:
    """A bar's height on a logarithmic scale from 0.01 up."""
    return max(0.04, HIGH * (math.log10(value) + 2) / (math.log10(60.0) + 2))


def alt_moved_scale(alpha: float) -> str:
    activations, weights = after(alpha)
    return f"""alpha {alpha:g}: activations spread {spread(activations):.3g} fold, weights
    {spread(weights):.3g} fold. Before, activations spread {spread(list(ACTIVATIONS)):.3g} fold,
    since one channel is an outlier, and weights {spread(list(COLUMN_WEIGHTS)):.3g} fold. The
    product of the two is the same in every channel."""


@schematic(alt_moved_scale, 9.5, 3.1, alpha=([0.0, 0.25, 0.5, 0.75, 1.0], 0.5))
def moved_scale(ax: Axes, alpha: float) -> None:
    """SmoothQuant: how much of an outlier moves from the activations into the weights.

    s = max|x|^alpha / max|w|^(1 - alpha): activations are divided by it, columns of the weight are
    multiplied (Xiao et al. 2023, equation 4). Six channels, of which one is an outlier.
    """
    bare(ax, 13.0, 4.2)
    activations, weights = after(alpha)
    panels = (
        ("activations, before", list(ACTIVATIONS), BLUE, 0.3),
        ("weights, before", list(COLUMN_WEIGHTS), BLUE, 3.4),
        (f"activations / s, alpha {alpha:g}", activations, ORANGE, 7.0),
        ("weights · s", weights, ORANGE, 10.1),
    )
    for title, values, color, x in panels:
        write(ax, x, 0.3, title, 9, ha="left", fontweight="bold")
        for place, value in enumerate(values):
            tall = height(value)
            shade = color if place == 2 else lighter(color, 0.5)
            box(ax, x + 0.42 * place, 0.9 + HIGH - tall, 0.36, tall, shade)
        words = f"largest / smallest: {spread(values):.3g}"
        write(ax, x, 3.6, words, 9, ha="left")
    words = "bars: largest magnitude of a channel, logarithmic    dark: the outlier"
    write(ax, 0.3, 4.0, words, 9, ha="left")
    write(ax, 7.0, 4.0, "s: one factor for each channel, (x / s) · (w · s) = x · w", 9, ha="left")


ROWS, WIDTH, GROUP, BLOCK = 4, 20, 10, 4


def spans() -> list[tuple[int, int]]:
    """The blocks: at most BLOCK columns, none crossing a group's start."""
    return [
        (start, min(start + BLOCK, first + GROUP))
        for first in range(0, WIDTH, GROUP)
        for start in range(first, first + GROUP, BLOCK)
    ]


def block_of(column: int) -> tuple[int, int]:
    return next(span for span in spans() if span[0] <= column < span[1])


def state(column: int, at: int) -> str:
    """The state of a column while column `at` is rounded."""
    if column <= at:
        return "rounded" if column < at else "being rounded"
    return "corrected now" if column < block_of(at)[1] else "waits"


COLORS = {"rounded": lighter(BLUE, 0.5), "being rounded": ORANGE}
COLORS |= {"corrected now": lighter(GREEN, 0.4), "waits": PALE}


def alt_column_loop(column: int) -> str:
    states = [state(place, column) for place in range(WIDTH)]
    start, stop = block_of(column)
    return f"""Column {column} is rounded: {states.count("corrected now")} columns take up its error
    now, {states.count("waits")} wait. {states.count("rounded")} of {WIDTH} are rounded. Its block
    is columns {start} to {stop - 1}; those that wait get all errors of the block in one matmul
    after it. A group has {GROUP} columns, and no block runs over its start."""


@schematic(alt_column_loop, 9.5, 4.0, column=(0, WIDTH - 1, 5))
def column_loop(ax: Axes, column: int) -> None:
    """GPTQ's order through a matrix: rounded, corrected, and waiting columns.

    Within a block each error goes to the columns right of it at once; columns beyond the block get
    all of its errors in one matmul (Frantar et al. 2023, figure 2). No block crosses a group.
    """
    side, left, top = 0.5, 0.4, 1.0
    bare(ax, 12.0, 5.0)
    start, stop = block_of(column)
    for place in range(WIDTH):
        x = left + side * place + 0.2 * (place // GROUP)
        write(ax, x + side / 2 - 0.02, top - 0.2, str(place), 8.5)
        for row in range(ROWS):
            box(ax, x, top + side * row, side - 0.04, side - 0.04, COLORS[state(place, column)])
    for first in range(0, WIDTH, GROUP):
        x = left + side * first + 0.2 * (first // GROUP)
        fitted = "scale fitted" if first <= column else "scale not yet known"
        write(ax, x + side * GROUP / 2, 0.35, f"group {first // GROUP}: {fitted}", 9)
    low, high = (left + side * place + 0.2 * (start // GROUP) for place in (start, stop))
    y = top + side * ROWS + 0.25
    ax.plot([low, low, high, high], [y - 0.12, y, y, y - 0.12], color="#444444", linewidth=1.4)
    write(ax, (low + high) / 2, y + 0.25, "block", 9)
    if stop < WIDTH:
        arrow(ax, (high + 0.1, y), (min(high + 2.0, 11.0), y))
        write(ax, high + 0.1, y + 0.35, "after the block: one matmul", 9, ha="left")
    for n, (name, color) in enumerate(COLORS.items()):
        box(ax, left + 2.7 * n, 4.4, 0.3, 0.3, color)
        write(ax, left + 2.7 * n + 0.42, 4.55, name, 9, ha="left")


REACH = 5.0  # to both sides, in steps


def largest(bits: int) -> int:
    return 2 ** (bits - 1) - 1


def rounded(x: float, bits: int) -> int:
    """The code of x, clamped."""
    m = largest(bits)
    return max(-m, min(m, round(x)))


def gradient(x: float, bits: int) -> int:
    """1 where the code is not clamped."""
    return int(abs(round(x)) <= largest(bits))


def alt_straight_through(bits: int) -> str:
    m = largest(bits)
    return f"""{bits} bits: a staircase from -{m} to {m}, and a gradient of 1 where it follows w.
    Forward, w is rounded to whole steps and clamped at {m}. Backward, the gradient passes as if
    nothing had been rounded, and is 0 where the code was clamped."""


@schematic(alt_straight_through, 9.5, 3.8, bits=([2, 3], 3))
def straight_through(ax: Axes, bits: int) -> None:
    """The straight-through estimator: a staircase with the gradient of a ramp.

    Forward is round and clamp; backward is 1 where no code was clamped, and 0 outside (Bengio et
    al. 2013). The step is 1: the horizontal axis counts in steps.
    """
    middles, high, unit = (3.1, 9.6), 2.4, 0.5
    bare(ax, 12.8, 5.2)
    xs = [REACH * (k / 2000 - 1) for k in range(4001)]
    titles = "forward: Q(w) / s", "backward: share of the gradient that passes"
    for middle, title in zip(middles, titles):
        write(ax, middle, 0.3, title, 9, fontweight="bold")
        ends = [middle - unit * REACH, middle + unit * REACH]
        ax.plot(ends, [high, high], color="#bbbbbb", linewidth=1, zorder=0)
        for step in range(-int(REACH), int(REACH) + 1):
            write(ax, middle + unit * step, 4.55, f"{step}", 8.5)
        write(ax, middle, 4.95, "w / s", 9)
    ramp = [middles[0] + unit * x for x in (-REACH, REACH)]
    ends = [high - 0.38 * x for x in (-REACH, REACH)]
    ax.plot(ramp, ends, color="#999999", linestyle="--", linewidth=1)
    m = largest(bits)
    for value in (-m, 0, m):
        write(
            ax, middles[0] - unit * REACH - 0.15, high - 0.38 * value, f"{value}", 8.5, ha="right"
        )
    steps = [high - 0.38 * rounded(x, bits) for x in xs]
    ax.plot([middles[0] + unit * x for x in xs], steps, color=BLUE, linewidth=2)
    passed = [high - 1.4 * gradient(x, bits) for x in xs]
    ax.plot([middles[1] + unit * x for x in xs], passed, color=ORANGE, linewidth=2)
    for value in (0, 1):
        write(ax, middles[1] - unit * REACH - 0.2, high - 1.4 * value, f"{value}", 8.5, ha="right")
    words = f"1 between -{m + 0.5:g} and {m + 0.5:g}, where no code was clamped"
    write(ax, middles[1], 3.2, words, 9)
    write(ax, middles[1], 3.7, "the staircase's own derivative is 0", 9)
