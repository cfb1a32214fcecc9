"""The ring: a column is a rank, a row a chunk, and in a box stand the ranks whose parts are summed.

Chunk c sets out at rank c + 1 and goes once around to the right; each rank adds its part as it
passes, until rank c holds the sum: the reduce-scatter. The all-gather sends what is complete once
around the same way (Patarasuk & Yuan 2009).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from minitrain.lab.drawing.display import BLUE, GREEN, ORANGE
from minitrain.lab.drawing.figures import lighter
from minitrain.lab.drawing.shapes import PALE, arrow, bare, box, say
from minitrain.lab.ideas.schematic import Schematic

if TYPE_CHECKING:
    from matplotlib.axes import Axes

RANKS = 4
HALF, WHOLE = RANKS - 1, 2 * (RANKS - 1)  # messages of a reduce-scatter, and of both
ACROSS, HIGH = 2.4, 0.8  # from a column to the next, the height of a row
WIDE = 1.5  # of a box
FOOT = HIGH * RANKS + 0.75  # the legend's line


def parts(step: int) -> list[list[list[int]]]:
    """parts[rank][chunk]: whose parts are in it when each rank has sent `step` messages."""
    held = [[[rank] for _ in range(RANKS)] for rank in range(RANKS)]
    for done in range(step):
        before = [[list(chunk) for chunk in row] for row in held]
        for rank in range(RANKS):
            left, chunk = (rank - 1) % RANKS, moving(done, rank - 1)
            is_sum = done < HALF
            arrived = before[left][chunk]
            held[rank][chunk] = arrived + before[rank][chunk] if is_sum else arrived
    return held


def moving(step: int, rank: int) -> int:
    """The chunk that a rank sends in its message number `step`, counted from 0."""
    return (rank - 1 - step) % RANKS


def draw_reduce_scatter(ax: Axes, step: int) -> None:
    _draw(ax, step, parts(step), HALF)
    say(ax, 0.9, FOOT, legend(step), ha="left")


def draw_all_gather(ax: Axes, step: int) -> None:
    """What is no whole sum is out of its sight; its step 0 is the ring's fourth message."""
    sent = HALF + step
    held = [[chunk if len(chunk) == RANKS else [] for chunk in row] for row in parts(sent)]
    _draw(ax, sent, held, WHOLE)
    more = "" if step == HALF else "    grey: no whole sum yet"
    say(ax, 0.9, FOOT, legend(step, is_complete=True) + more, ha="left")


def legend(step: int, is_complete: bool = False) -> str:
    """What the boxes say; is_complete: green ones are there from the start, not at the end only."""
    words = "in a box: the ranks whose parts are summed"
    words += "    green: all four" * (is_complete or step == HALF)
    return words + "    orange: leaves next" * (step < HALF)


def _draw(ax: Axes, step: int, held: list[list[list[int]]], last: int) -> None:
    bare(ax, ACROSS * RANKS + 0.9, FOOT + 0.2)
    for rank in range(RANKS):
        x = 0.9 + ACROSS * rank
        say(ax, x + WIDE / 2, 0.3, f"rank {rank}", fontweight="bold")
        for chunk in range(RANKS):
            y, own = 0.6 + HIGH * chunk, held[rank][chunk]
            color = GREEN if len(own) == RANKS else lighter(BLUE, 1 - len(own) / RANKS)
            color = PALE if len(own) <= 1 else color
            leaves = step < last and chunk == moving(step, rank)
            edge = {"edgecolor": ORANGE, "linewidth": 2} if leaves else {}
            box(ax, x, y, WIDE, HIGH - 0.15, color, " + ".join(map(str, own)), **edge)
            if leaves:
                middle = y + (HIGH - 0.15) / 2
                arrow(ax, (x + WIDE, middle), (x + ACROSS, middle), ORANGE)
                if rank == RANKS - 1:
                    say(ax, x + ACROSS - 0.1, middle - 0.17, "to rank 0", 8.5, ha="right")
    for chunk in range(RANKS):
        say(ax, 0.75, 0.6 + HIGH * chunk + (HIGH - 0.15) / 2, f"chunk {chunk}", ha="right")


def say_reduce_scatter(step: int) -> str:
    over = "Reduce-scatter done: rank r holds chunk r of the sum" if step == HALF else ""
    return _said("Reduce-scatter", step, step, over)


def say_all_gather(step: int) -> str:
    over = "All-gather done: every rank holds every chunk of the sum" if step == HALF else ""
    return _said("All-gather", step, HALF + step, over)


def _said(phase: str, step: int, sent_before: int, over: str) -> str:
    """sent_before: a rank's messages since the reduce-scatter began."""
    complete = sum(len(chunk) == RANKS for row in parts(sent_before) for chunk in row)
    done = f"{step} of {HALF} messages sent by each rank"
    found = f"{complete} of {RANKS * RANKS} boxes hold the sum over all {RANKS} ranks"
    if over:
        return f"{over}. {done}; {found}."
    sent = ", ".join(f"rank {r} sends chunk {moving(sent_before, r)}" for r in range(RANKS))
    title = f"{phase}, step {step}: message {step + 1} of {HALF} goes to the right"
    return f"{title}. {done}; {found}. Next, {sent}."


SIZE = (9.5, 3.8)
ring_reduce_scatter = Schematic(
    draw_reduce_scatter, say_reduce_scatter, SIZE, {"step": (0, HALF, 0)}
)
ring_all_gather = Schematic(draw_all_gather, say_all_gather, SIZE, {"step": (0, HALF, 0)})
