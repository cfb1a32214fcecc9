"""The grid of a pipeline's schedule: a row is a rank, a box an operation, hatched is idle.

    microbatches   all forwards, then all backwards, with more and more microbatches (Huang 2019)
    order          the same work, with each backward as early as it can be (Narayanan et al. 2019)
    chunks         the same work, in stages of half the length (Narayanan et al. 2021)

Small enough that each box can be followed: a forward takes 1, a backward 2.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from minitrain.lab.drawing import schedule as drawing
from minitrain.lab.drawing.figures import INK
from minitrain.lab.ideas.schematic import Schematic
from minitrain.parallel.pipeline.operations import Operation
from minitrain.parallel.pipeline.timeline import Clocked, clocked, peak_live
from minitrain.words import plural

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from minitrain.parallel.pipeline.operations import Schedule

RANKS, MICROBATCHES = 3, 5
UNITS = {"F": 1.0, "B": 2.0}
NAMES = {"gpipe": "GPipe", "1f1b": "1F1B"}
TIME = "time (forwards)    in a box: its microbatch"


def made(kind: str, p: int, m: int, v: int = 1) -> Schedule:
    """The reference's; imported here, since a learner's checks run where they are not."""
    from minitrain.parallel.pipeline.schedules import make_schedule

    return make_schedule(kind, p, m, v)


def timed(schedule: Schedule) -> Clocked:
    """A whole stage's forward takes 1: a chunk's, of v, takes 1/v."""
    return clocked(schedule, lambda _, operation: UNITS[operation.kind] / schedule.chunks)


def paint(ax: Axes, clock: Clocked, longest: float, label: str = TIME) -> None:
    """The grid, on an axis that is as long at every position of a handle; its legend below."""
    from matplotlib.ticker import MultipleLocator

    drawing.draw(ax, clock, "forwards", "")
    ax.set_xlim(0, longest)
    ax.xaxis.set_major_locator(MultipleLocator(3))
    ax.set_xlabel(label, loc="left")
    explain(ax)


def explain(ax: Axes) -> None:
    """The legend of all that is painted, below the axis, where the title leaves it room."""
    ax.legend(loc="upper right", bbox_to_anchor=(1.01, -0.13), ncols=5, borderaxespad=0)


def draw_microbatches(ax: Axes, microbatches: int) -> None:
    paint(ax, timed(made("gpipe", RANKS, microbatches)), 3 * (4 + RANKS - 1))


def say_microbatches(microbatches: int) -> str:
    clock = timed(made("gpipe", RANKS, microbatches))
    each = clock.makespan / microbatches
    count = f"{microbatches} microbatch{'' if microbatches == 1 else 'es'}"
    return (
        f"GPipe, {RANKS} ranks, {count}: "
        f"{clock.makespan:g} forwards' time, {each:.3g} a microbatch; each rank idles for "
        f"{clock.bubble(0):g}. Rows are ranks: blue boxes "
        "are forwards, orange ones backwards, twice as long; the numbers are microbatches, and "
        "hatched time is idle."
    )


def draw_order(ax: Axes, order: str) -> None:
    clock = timed(made(order, RANKS, MICROBATCHES))
    paint(ax, clock, 3 * (MICROBATCHES + RANKS - 1))
    if order == "1f1b":
        for rank, events in enumerate(clock.ranks):
            ahead = [(event.start, event.end - event.start) for event in events[: RANKS - 1 - rank]]
            ax.broken_barh(
                ahead, (rank - 0.36, 0.72), facecolors="none", edgecolor=INK, linewidth=2
            )
        words = "ahead: p - 1 - r on rank r of p"
        ax.barh(0, 0, 0, facecolor="none", edgecolor=INK, linewidth=2, label=words)
        explain(ax)


def say_order(order: str) -> str:
    schedule = made(order, RANKS, MICROBATCHES)
    live = ", ".join(map(str, peak_live(schedule)))
    first = " ".join(map(str, schedule.ranks[0]))
    framed = ". Framed: the forwards ahead, 2, 1 and 0 of them." if order == "1f1b" else "."
    return (
        f"{NAMES[order]}, {RANKS} ranks, {MICROBATCHES} microbatches: activations alive at "
        f"once, rank by rank, {live}. It takes {timed(schedule).makespan:g} forwards' "
        f"time; rank 0 runs {first}{framed}"
    )


def draw_chunks(ax: Axes, chunks: int) -> None:
    paint(ax, timed(made("interleaved", 2, 4, chunks)), 15, "time (forwards)")
    if chunks > 1:
        for kind, name in (("F", "forward"), ("B", "backward")):
            color = drawing.color_of(Operation(kind, 0, 1))
            ax.barh(0, 0, 0, color=color, label=f"{name}, second chunk")
        explain(ax)


def say_chunks(chunks: int) -> str:
    clock = timed(made("interleaved", 2, 4, chunks))
    first = " ".join(str(event.operation) for event in clock.ranks[0])
    whole = timed(made("interleaved", 2, 4)).bubble(0)
    beside = f", with one chunk for {whole:g}" if chunks > 1 else ""
    return (
        f"2 ranks, 4 microbatches, {plural(chunks, 'chunk')} a rank: each rank idles for "
        f"{clock.bubble(0):g} forwards' time{beside}. Dark boxes are a rank's first chunk, "
        f"light ones its second; rank 0 runs {first}, where a number behind the point is the chunk."
    )


pipeline_microbatches = Schematic(
    draw_microbatches, say_microbatches, (10, 2.8), {"microbatches": (1, 4, 3)}
)
pipeline_order = Schematic(draw_order, say_order, (10, 2.8), {"order": (["gpipe", "1f1b"], "1f1b")})
pipeline_chunks = Schematic(draw_chunks, say_chunks, (10, 2.4), {"chunks": (1, 2, 2)})
