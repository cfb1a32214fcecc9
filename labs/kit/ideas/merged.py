"""Attention to two sets of keys, merged: each answer counts by what its set weighs.

One query and eight keys, drawn by hand: a bar is exp(score), below it stands the key's value. The
answer over all keys is the same wherever they are cut (Milakov & Gimelshein 2018; Liu et al. 2023).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from minitrain.lab.drawing.display import BLUE, GREEN, ORANGE
from minitrain.lab.drawing.figures import lighter
from minitrain.lab.drawing.shapes import bare, box, say
from minitrain.lab.ideas.schematic import Schematic

if TYPE_CHECKING:
    from matplotlib.axes import Axes

WEIGHTS = (1.0, 0.5, 2.0, 0.5, 1.5, 1.0, 0.5, 1.0)  # exp of each score
VALUES = (4, 0, 6, 2, 1, 3, 8, 0)
KEYS = len(WEIGHTS)
LEFT, FLOOR, WIDE, HIGH = 1.3, 3.1, 0.72, 1.0


def attended(keys: range) -> tuple[float, float]:
    """What a set of keys weighs, and its answer: the mean of its values by weight."""
    total = sum(WEIGHTS[key] for key in keys)
    return total, sum(WEIGHTS[key] * VALUES[key] for key in keys) / total


def draw_merged_attention(ax: Axes, cut: int) -> None:
    bare(ax, 13.4, 4.3)
    say(ax, LEFT + WIDE * KEYS / 2, 0.4, "one query and its eight keys")
    say(ax, LEFT - 0.1, FLOOR - 0.35, "exp(score)", 8.5, ha="right")
    say(ax, LEFT - 0.1, FLOOR + 0.3, "value", 8.5, ha="right")
    for key in range(KEYS):
        hue, x, height = (BLUE if key < cut else ORANGE), LEFT + WIDE * key, HIGH * WEIGHTS[key]
        box(ax, x + 0.05, FLOOR - height, WIDE - 0.1, height, lighter(hue, 0.25))
        say(ax, x + WIDE / 2, FLOOR - height - 0.15, f"{WEIGHTS[key]:g}", 8.5)
        box(ax, x + 0.05, FLOOR + 0.1, WIDE - 0.1, 0.4, lighter(hue, 0.75), str(VALUES[key]), 8.5)
    for keys, words in ((range(cut), "first set"), (range(cut, KEYS), "second set")):
        middle = LEFT + WIDE * (keys[0] + len(keys) / 2)
        say(ax, middle, FLOOR + 0.8, words if len(keys) > 1 else words.split()[0], 8.5)
    heads = ("weight:\nsum of exp", "answer:\nmean value", "share of\nthe weight")
    x = LEFT + WIDE * KEYS + 2.3
    for column, words in enumerate(heads):
        say(ax, x + 1.5 * column, 0.7, words, 8.5, fontweight="bold")
    everything = attended(range(KEYS))
    rows = [("first set", BLUE, attended(range(cut)))]
    rows += [("second set", ORANGE, attended(range(cut, KEYS))), ("merged", GREEN, everything)]
    for row, (words, hue, (total, answer)) in enumerate(rows):
        y = 1.35 + 0.7 * row
        box(ax, x - 2.0, y - 0.27, 5.7, 0.54, lighter(hue, 0.75))
        say(ax, x - 1.9, y, words, ha="left")
        values = (f"{total:g}", f"{answer:.3f}", f"{total / everything[0]:.3f}")
        for column, value in enumerate(values):
            say(ax, x + 1.5 * column, y, value)


def say_merged_attention(cut: int) -> str:
    (first, one), (second, other) = attended(range(cut)), attended(range(cut, KEYS))
    total, both = attended(range(KEYS))
    return (
        f"{first:g}/{total:g} of {one:.3f} plus {second:g}/{total:g} of {other:.3f} is {both:.3f}, "
        f"wherever the keys are cut. Eight bars, the exponentials of one query's scores, are cut "
        f"after {cut}; the table beside has what each set weighs, its answer and its share."
    )


merged_attention = Schematic(
    draw_merged_attention, say_merged_attention, (9.5, 3.3), {"cut": (1, KEYS - 1, 3)}
)
