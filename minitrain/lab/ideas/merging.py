"""Into the weights and out again: added to W itself, or in a matrix beside it.

Numbers have two decimal digits here, as bfloat16 has eight binary ones: what is lost where a sum
reaches the next power of ten can be followed number by number (Hu et al. 2021, section 4.1).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from minitrain.lab.drawing.display import BLUE, ORANGE
from minitrain.lab.drawing.figures import lighter
from minitrain.lab.drawing.shapes import arrow, bare, box, say
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
    bare(ax, 12.6, 4.0)
    names = ("W", "merged, W + ΔW", "unmerged")
    for row, (name, numbers) in enumerate(zip(names, after(way))):
        y = 0.4 + 1.25 * row
        say(ax, 2.6, y + 0.3, name, 10, ha="right", fontweight="bold")
        for place, number in enumerate(numbers):
            changed = row == 2 and number != W[place]
            hue = ORANGE if changed else lighter(BLUE, 0.6)
            box(ax, 3.0 + 0.85 * place, y, 0.75, 0.6, hue, f"{number:g}", 10)
    say(ax, 8.5, 0.7, "two decimal digits\nof each are kept", 9, ha="left")
    for row, sign in ((0, "+"), (1, "-")):
        if way == "beside" and row == 1:
            say(ax, 8.5, 2.6, "the merged one is let go:\nW was never written", 9, ha="left")
            continue
        y = 1.32 + 1.25 * row
        say(ax, 8.5, y, f"{sign} ΔW, rounded", 9, ha="left")
        arrow(ax, (8.3, y - 0.3), (8.3, y + 0.3))


def say_merging(way: str) -> str:
    wrong = sum(a != b for a, b in zip(after(way)[2], W))
    how = "added to W, and subtracted" if way == "in place" else "kept in a matrix of its own"
    return (
        f"Merged {way}: {wrong} of {len(W)} numbers do not come back. Numbers are rounded to two "
        f"digits whenever they are written; the sum is {how}."
    )


merging = Schematic(draw_merging, say_merging, (9.5, 3.0), {"way": (list(WAYS), "in place")})
