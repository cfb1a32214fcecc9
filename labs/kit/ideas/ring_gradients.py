"""The way back of a ring: the gradient of a block follows it, and gathers each rank's part.

A column is a rank. Keys come from the left as in the forward pass; behind them, a step late, comes
the sum of the parts of the ranks they have passed (Liu et al. 2023). A block's own rank keeps its
own part at home, until the sum has been everywhere else.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from minitrain.lab.drawing.display import BLUE, GREEN, ORANGE, PINK
from minitrain.lab.drawing.figures import lighter
from minitrain.lab.drawing.shapes import PALE, arrow, bare, box, say
from minitrain.lab.ideas.schematic import Schematic
from minitrain.words import plural

if TYPE_CHECKING:
    from matplotlib.axes import Axes

HUES = (BLUE, ORANGE, GREEN, PINK)
RANKS = 4
LEFT, ACROSS, WIDE, HIGH = 1.9, 2.5, 1.9, 0.5
FOOT = (
    "keys go on while a rank computes, their gradient once the rank's part is in it;\n"
    "from rank 3 both go to rank 0; the own part is added when the sum has come home"
)


def parts(rank: int, step: int) -> list[int]:
    """Whose parts are in the gradient that a rank holds after it has computed in `step`."""
    owner = (rank - step) % RANKS
    return [(owner + passed) % RANKS for passed in range(1, step + 1)][: RANKS - 1]


def draw_ring_gradients(ax: Axes, step: int) -> None:
    bare(ax, LEFT + ACROSS * RANKS, 3.5)
    named = ((0.95, "keys, values of"), (1.65, "their gradient"), (2.35, "own part"))
    for y, words in named if step < RANKS else [(1.65, "the own gradient")]:
        say(ax, LEFT - 0.15, y, words, ha="right")
    for rank in range(RANKS):
        x, owner = LEFT + ACROSS * rank, (rank - step) % RANKS
        say(ax, x + WIDE / 2, 0.4, f"rank {rank}", fontweight="bold")
        own = lighter(HUES[rank], 0.25)
        if step < RANKS:
            box(ax, x, 0.7, WIDE, HIGH, lighter(HUES[owner], 0.25), f"rank {owner}")
            found = " + ".join(map(str, parts(rank, step)))
            box(ax, x, 1.4, WIDE, HIGH, lighter(HUES[owner], 0.6) if step else PALE,
                f"parts of {found}" if step else "none yet")  # fmt: skip
            box(ax, x, 2.1, WIDE, HIGH, own, "waits at home")
        else:
            box(ax, x, 1.4, WIDE, HIGH, own, "of 0 + 1 + 2 + 3")
        to = (x + ACROSS if rank < RANKS - 1 else x + WIDE + 0.45) - x
        if step < RANKS - 1:
            arrow(ax, (x + WIDE, 0.95), (x + to, 0.95))
        if 0 < step < RANKS:
            arrow(ax, (x + WIDE, 1.65), (x + to, 1.65))
    if step < RANKS:
        say(ax, LEFT, 3.1, FOOT, ha="left")


def say_ring_gradients(step: int) -> str:
    if step == RANKS:
        return (
            "Home: every gradient has the parts of all ranks. Each rank has added the part that "
            "waited to the sum that came from the left: its keys' gradient is complete."
        )
    held = "; ".join(
        f"rank {rank} has keys of rank {(rank - step) % RANKS} and, of their gradient, "
        f"{'the parts of ' + ' + '.join(map(str, parts(rank, step))) if step else 'nothing yet'}"
        for rank in range(RANKS)
    )
    words = "its own keys"
    if step:
        words = f"the keys that began {plural(step, 'place')} to its left"
    return f"Step {step}: each rank computes its part for {words}. {held}."


ring_gradients = Schematic(
    draw_ring_gradients, say_ring_gradients, (9.5, 3.15), {"step": (0, RANKS, 2)}
)
