"""A shuffled epoch dealt out to two ranks, stopped, and gone on with by three."""

from __future__ import annotations

from typing import TYPE_CHECKING

from minitrain.lab.drawing.display import BLUE, GREEN, ORANGE
from minitrain.lab.drawing.figures import lighter
from minitrain.lab.drawing.shapes import arrow, bare, box, say
from minitrain.lab.ideas.schematic import Schematic
from minitrain.words import plural

if TYPE_CHECKING:
    from matplotlib.axes import Axes

ORDER = (7, 2, 9, 4, 11, 1, 8, 0, 5, 10, 3, 6)
BATCH, BEFORE = 2, 2
HUES = (BLUE, ORANGE, GREEN)
LEFT, WIDE = 1.6, 0.82


def consumed(steps: int) -> int:
    """Rows that all ranks together were given before the stop."""
    return min(len(ORDER), steps * BATCH * BEFORE)


def dealt(steps: int, after: int) -> list[tuple[int, int]]:
    """(rank, step) of each place of the order; steps are counted anew after the stop."""
    start, found = consumed(steps), []
    for place in range(len(ORDER)):
        ranks, at = (BEFORE, place) if place < start else (after, place - start)
        found.append((at % (BATCH * ranks) % ranks, at // (BATCH * ranks)))
    return found


def idle(steps: int, after: int) -> str:
    """Who has no row in the last step, and makes it nevertheless."""
    last = dealt(steps, after)[-1][1]
    at_work = {rank for rank, step in dealt(steps, after)[consumed(steps) :] if step == last}
    without = [f"rank {rank}" for rank in range(after) if rank not in at_work]
    return f"the last step has no row for {' and '.join(without)}" if without else ""


def draw_resumed(ax: Axes, ranks_after: int, steps: int) -> None:
    bare(ax, LEFT + WIDE * len(ORDER) + 1.0, 4.1)
    start = consumed(steps)
    say(ax, LEFT - 0.2, 1.15, "rows, in order", 9, ha="right")
    for place, (row, (rank, _)) in enumerate(zip(ORDER, dealt(steps, ranks_after))):
        x = LEFT + WIDE * place
        box(ax, x, 0.85, WIDE - 0.08, 0.6, lighter(HUES[rank], 0.35), str(row), 10)
        say(ax, x + WIDE / 2 - 0.04, 1.75, f"rank {rank}", 7)
    steps_of = [step for _, step in dealt(steps, ranks_after)]
    edges = [p for p in range(1, len(ORDER)) if p == start or steps_of[p] != steps_of[p - 1]]
    for place in edges:
        x = LEFT + WIDE * place - 0.04
        style = {"color": "#222222", "linewidth": 2.5} if place == start else {"color": "#aaaaaa"}
        ax.plot([x, x], [0.5, 2.0], **style)
    x = LEFT + WIDE * start - 0.04
    say(ax, x, 0.25, "stopped here", 9, fontweight="bold")
    arrow(ax, (x, 2.9), (x, 2.1), "#222222")
    say(ax, x, 3.2, f"state: epoch 0, consumed {start}", 9)
    words = f"before: {BEFORE} ranks, after: {ranks_after}; a batch of {BATCH} each"
    words += "; grey line: a step ends" if any(place != start for place in edges) else ""
    say(ax, LEFT, 3.8, words, 8.5, ha="left")
    say(ax, LEFT + WIDE * len(ORDER) - 0.08, 2.2, idle(steps, ranks_after), 8.5, ha="right")


def say_resumed(ranks_after: int, steps: int) -> str:
    left = len(ORDER) - consumed(steps)
    rest = f" {words[0].upper()}{words[1:]}." if (words := idle(steps, ranks_after)) else ""
    stopped = f"Stopped after {plural(steps, 'step')} on {BEFORE} ranks"
    return (
        f"{stopped}, resumed on {ranks_after}: {left} rows are left. The order is {list(ORDER)}, "
        f"drawn from seed and epoch; {consumed(steps)} rows of it were consumed, and each row "
        f"comes once.{rest}"
    )


resumed_stream = Schematic(
    draw_resumed, say_resumed, (9.5, 3.2), {"ranks_after": (1, 3, 3), "steps": (1, 2, 1)}
)
