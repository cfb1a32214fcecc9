"""Unequal microbatches: what a token weighs in the mean of means, and in the mean over tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING

from minitrain.lab.drawing.display import BLUE, GREEN, ORANGE
from minitrain.lab.drawing.shapes import PALE, bare, box, say
from minitrain.lab.ideas.schematic import Schematic
from minitrain.words import plural

if TYPE_CHECKING:
    from matplotlib.axes import Axes

PLACES, OTHERS, HUES = 12, (12, 7), (BLUE, ORANGE, GREEN)
LEFT, WIDE = 1.9, 0.5


def counts(counted: int) -> tuple[int, ...]:
    """Targets that count, of each microbatch; `counted` is the last one's."""
    return (*OTHERS, counted)


def draw_microbatches(ax: Axes, counted: int) -> None:
    right = LEFT + WIDE * PLACES
    bare(ax, right + 5.6, 3.8)
    sizes = counts(counted)
    total, number = sum(sizes), len(sizes)
    for x, words in ((right + 1.6, "mean of means"), (right + 4.2, "mean over tokens")):
        say(ax, x, 0.62, words, fontweight="bold")
    say(ax, right + 2.9, 0.2, "weight of one target")
    for row, (size, color) in enumerate(zip(sizes, HUES)):
        y = 0.95 + 0.75 * row
        say(ax, LEFT - 0.15, y + 0.25, f"microbatch {row}", ha="right")
        for place in range(PLACES):
            fill = color if place < size else PALE
            box(ax, LEFT + WIDE * place, y, WIDE - 0.06, 0.5, fill)
        say(ax, right + 1.6, y + 0.25, f"1/({number}·{size}) = {1 / (number * size):.3f}")
        say(ax, right + 4.2, y + 0.25, f"1/{total} = {1 / total:.3f}")
    say(ax, LEFT, 3.5, "coloured: a target that counts    grey: padding, -100", ha="left")


def say_microbatches(counted: int) -> str:
    sizes = counts(counted)
    most = max(sizes) / counted
    weighs = f"{most:.3g} times as much as" if most > 1 else "as much as"
    return (
        f"{plural(counted, 'target')} in the last microbatch: in a mean of means each weighs "
        f"{weighs} one of the first. Three microbatches of {PLACES} places hold "
        f"{', '.join(map(str, sizes))} targets; beside each stands what one of its tokens weighs "
        f"in the mean of the three means, and in the mean over all {sum(sizes)} tokens."
    )


unequal_microbatches = Schematic(
    draw_microbatches, say_microbatches, (10.0, 3.1), {"counted": ([1, 3, 7, 12], 3)}
)
