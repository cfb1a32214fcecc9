"""Steps of ranks that meet in a collective: one is slow, and all are equally late."""

from __future__ import annotations

from typing import TYPE_CHECKING

from minitrain.lab.drawing.display import BLUE, GREEN, ORANGE
from minitrain.lab.drawing.shapes import bare, box, say
from minitrain.lab.ideas.schematic import Schematic

if TYPE_CHECKING:
    from matplotlib.axes import Axes

RANKS, STEPS, SLOW, MEET = 4, 2, 2, 0.5
COMPUTE = 2.0  # of a rank that is well; the collective takes MEET
LEFT, TOP, HIGH = 1.5, 0.75, 0.5


def waited(slower: float) -> float:
    """The share of all ranks' time that is spent waiting."""
    return (RANKS - 1) * COMPUTE * (slower - 1) / (RANKS * (COMPUTE * slower + MEET))


def draw_waiting(ax: Axes, slower: float) -> None:
    step = COMPUTE * slower + MEET
    bare(ax, LEFT + STEPS * (3 * COMPUTE + MEET) + 0.3, 0.7 * RANKS + 1.7)
    _bracket(ax, slower)
    for rank in range(RANKS):
        y = TOP + 0.7 * rank
        say(ax, LEFT - 0.2, y + HIGH / 2, f"rank {rank}", ha="right")
        own = COMPUTE * (slower if rank == SLOW else 1)
        for number in range(STEPS):
            x = LEFT + number * step
            color = ORANGE if rank == SLOW and slower > 1 else BLUE
            box(ax, x, y, own - 0.04, HIGH, color, f"compute {own:g}", 9)
            if (waits := step - MEET - own) > 0.05:
                box(ax, x + own, y, waits - 0.04, HIGH, "white", f"waits {waits:g}", 9,
                    edgecolor="#c4c4c4", linestyle="--")  # fmt: skip
            box(ax, x + step - MEET, y, MEET - 0.04, HIGH, GREEN, f"{MEET:g}", 8.5)
    legend = "green: the collective, which begins when the last rank has come"
    say(ax, LEFT, TOP + 0.7 * RANKS + 0.2, legend, 9, ha="left")
    slow = f"rank {SLOW} takes {COMPUTE * slower:g}, all others" if slower > 1 else "all ranks take"
    words = f"timed before the collective: {slow} {COMPUTE:g}"
    say(ax, LEFT, TOP + 0.7 * RANKS + 0.6, words, 9, ha="left")


def _bracket(ax: Axes, slower: float) -> None:
    """Over the first step of all ranks."""
    step = COMPUTE * slower + MEET
    ends = [LEFT, LEFT, LEFT + step - 0.04, LEFT + step - 0.04]
    ax.plot(ends, [0.62, 0.5, 0.5, 0.62], color="#444444", linewidth=1.4)
    spared = f"; it would be {COMPUTE + MEET:g} if none were slow" if slower > 1 else ""
    say(ax, LEFT, 0.25, f"a step: {step:g} on every rank{spared}", 9, ha="left")


def say_waiting(slower: float) -> str:
    step = COMPUTE * slower + MEET
    late = f"Rank {SLOW} takes {slower:g} times as long" if slower > 1 else "All are equally fast"
    return (
        f"{late}, and every rank's step is {step:g} long: "
        f"{100 * waited(slower):.0f}% of all time is waiting. By whole steps nobody is slow; "
        f"before the collective rank {SLOW} computes {COMPUTE * slower:g}, the others {COMPUTE:g}."
    )


waiting_ranks = Schematic(
    draw_waiting, say_waiting, (10.0, 3.4), {"slower": ([1.0, 1.5, 2.0, 3.0], 2.0)}
)
