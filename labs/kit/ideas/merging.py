"""Into the weights and out again: added to W itself, or in a matrix beside it.

Numbers have two significant decimal digits here, as bfloat16 has eight binary ones: what is lost
where a sum reaches the next power of ten can be followed number by number (Hu et al. 2021, section
4.1).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from minitrain.lab.drawing.display import BLUE, ORANGE
from minitrain.lab.drawing.figures import lighter
from minitrain.lab.drawing.shapes import PALE, bare, box, say
from minitrain.lab.ideas.schematic import Schematic

if TYPE_CHECKING:
    from matplotlib.axes import Axes

W = (9.7, -3.1, 0.12, 5.6, -9.9, 2.4)
DELTA = (0.64, 0.25, 0.97, -0.38, -0.73, 0.11)  # what an adapter adds
WAYS = ("in place", "beside")


def written(number: float) -> float:
    """As a format of two decimal digits keeps it."""
    return float(f"{number:.1e}")


def after(way: str) -> list[list[float]]:
    """W, then merged, then unmerged."""
    merged = [written(w + d) for w, d in zip(W, DELTA)]
    back = [written(m - d) for m, d in zip(merged, DELTA)] if way == "in place" else list(W)
    return [list(W), merged, back]


def draw_merging(ax: Axes, way: str) -> None:
    bare(ax, 12.6, 4.2)
    whole, merged, back = after(way)
    last = "unmerged: less ΔW" if way == "in place" else "unmerged: W itself"
    rows = {"W": whole, "ΔW": DELTA, "merged: W + ΔW": merged, last: back}
    for row, (name, numbers) in enumerate(rows.items()):
        y = 0.3 + 1.0 * row
        say(ax, 2.8, y + 0.3, name, 10, ha="right", fontweight="bold")
        for place, number in enumerate(numbers):
            changed = row == 3 and number != W[place]
            hue = PALE if row == 1 else ORANGE if changed else lighter(BLUE, 0.6)
            box(ax, 3.0 + 0.85 * place, y, 0.75, 0.6, hue, f"{number:g}", 10)
    beside = "the merged one is let go:\nW was never written"
    for row, words in (
        (0, "two significant decimal\ndigits of each are kept"),
        (2, "rounded"),
        (3, "rounded    orange: another number" if way == "in place" else beside),
    ):
        say(ax, 8.3, 0.6 + 1.0 * row, words, 9, ha="left")


def say_merging(way: str) -> str:
    wrong = sum(a != b for a, b in zip(after(way)[2], W))
    how = "added to W, and subtracted" if way == "in place" else "kept in a matrix of its own"
    return (
        f"Merged {way}: {wrong} of {len(W)} numbers do not come back. Numbers are rounded to two "
        f"significant digits whenever they are written; the sum is {how}."
    )


merging = Schematic(draw_merging, say_merging, (9.5, 3.0), {"way": (list(WAYS), "in place")})
