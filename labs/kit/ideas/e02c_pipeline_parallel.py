"""Schematics of lab e02c, pipeline parallel."""

from __future__ import annotations

from matplotlib.axes import Axes

from minitrain.lab.drawing import schedule as drawing
from minitrain.lab.drawing.colors import COLORS, INK, lighter
from minitrain.lab.drawing.shapes import arrow, bare, box, write
from minitrain.lab.ideas.schematic import schematic
from minitrain.parallel.pipeline.operations import Operation, Schedule
from minitrain.parallel.pipeline.timeline import Clocked, clocked, peak_live
from minitrain.words import plural

LAYERS = 8


def alt_pipeline_stages(ranks: int) -> str:
    each = LAYERS // ranks
    how = f"{each} each, one tensor to a neighbour" if ranks > 1 else "nothing to send"
    return f"""{LAYERS} layers on {plural(ranks, "rank")}: {how}. The first rank has the embedding
    as well, the last one the head. Forward hands x to the right across each border, backward its
    gradient to the left; nothing else is sent."""


@schematic(alt_pipeline_stages, 9.5, 2.2, ranks=([1, 2, 4], 4))
def pipeline_stages(ax: Axes, ranks: int) -> None:
    """A model cut between its layers: each rank holds some, and sends one tensor to the next."""
    wide, gap, left = 1.0, 1.0, 0.2  # of a layer, between ranks, before the first
    bare(ax, 2 * left + wide * (LAYERS + 2) + gap * 3, 2.9)
    each, x = LAYERS // ranks, left
    for rank in range(ranks):
        names = [str(i) for i in range(rank * each, (rank + 1) * each)]
        names = ["embed"] * (rank == 0) + names + ["head"] * (rank == ranks - 1)
        write(ax, x + wide * len(names) / 2, 0.55, f"rank {rank}", fontweight="bold")
        for name in names:
            hue = lighter(COLORS[rank], 0.65 if name in ("embed", "head") else 0.25)
            box(ax, x + 0.04, 0.9, wide - 0.08, 0.9, hue, name, 8.5)
            x += wide
        if rank < ranks - 1:
            arrow(ax, (x + 0.08, 1.15), (x + gap - 0.08, 1.15))
            arrow(ax, (x + gap - 0.08, 1.55), (x + 0.08, 1.55))
            write(ax, x + gap / 2, 0.9, "x")
            write(ax, x + gap / 2, 1.85, "gradient", 8.5)
            x += gap
    legend = "numbers: layers    to the right: forward    to the left: backward"
    write(ax, left, 2.5, legend, ha="left")


RANKS, MICROBATCHES = 3, 5
TIME = "time (forwards)    in a box: its microbatch"


def made(kind: str, p: int, m: int, v: int = 1) -> Schedule:
    """The reference's schedule; imported late, since the sandbox hides it from checks."""
    from minitrain.parallel.pipeline.schedules import make_schedule

    return make_schedule(kind, p, m, v)


def timed(schedule: Schedule) -> Clocked:
    """A whole stage's forward takes 1; that of one of v chunks takes 1/v."""
    units = {"F": 1.0, "B": 2.0}
    return clocked(schedule, lambda _, operation: units[operation.kind] / schedule.chunks)


def paint(ax: Axes, clock: Clocked, longest: float, label: str = TIME) -> None:
    """The grid, on an axis of the same length at every slider position; its legend below."""
    from matplotlib.ticker import MultipleLocator

    drawing.draw(ax, clock, "forwards", "")
    ax.set_xlim(0, longest)
    ax.xaxis.set_major_locator(MultipleLocator(3))
    ax.set_xlabel(label, loc="left")
    explain(ax)


def explain(ax: Axes) -> None:
    """The legend, below the axis, clear of the title."""
    ax.legend(loc="upper right", bbox_to_anchor=(1.01, -0.13), ncols=5, borderaxespad=0)


def alt_pipeline_microbatches(microbatches: int) -> str:
    clock = timed(made("gpipe", RANKS, microbatches))
    each = clock.makespan / microbatches
    count = f"{microbatches} microbatch{'' if microbatches == 1 else 'es'}"
    return f"""GPipe, {RANKS} ranks, {count}: {clock.makespan:g} forwards' time, {each:.3g} a
    microbatch; each rank idles for {clock.bubble(0):g}. Rows are ranks: blue boxes are forwards,
    orange ones backwards, twice as long; the numbers are microbatches, and hatched time is idle."""


@schematic(alt_pipeline_microbatches, 10, 2.8, microbatches=(1, 4, 3))
def pipeline_microbatches(ax: Axes, microbatches: int) -> None:
    """The grid of a pipeline's schedule: a row is a rank, a box an operation, hatched is idle.

    All forwards, then all backwards, for increasing numbers of microbatches (Huang et al. 2019). A
    forward takes 1, a backward 2.
    """
    paint(ax, timed(made("gpipe", RANKS, microbatches)), 3 * (4 + RANKS - 1))


def alt_pipeline_order(order: str) -> str:
    names = {"gpipe": "GPipe", "1f1b": "1F1B"}
    schedule = made(order, RANKS, MICROBATCHES)
    live = ", ".join(map(str, peak_live(schedule)))
    first = " ".join(map(str, schedule.ranks[0]))
    framed = ". Framed: the forwards ahead, 2, 1 and 0 of them." if order == "1f1b" else "."
    return f"""{names[order]}, {RANKS} ranks, {MICROBATCHES} microbatches: activations alive at
    once, rank by rank, {live}. It takes {timed(schedule).makespan:g} forwards' time; rank 0 runs
    {first}{framed}"""


@schematic(alt_pipeline_order, 10, 2.8, order=(["gpipe", "1f1b"], "1f1b"))
def pipeline_order(ax: Axes, order: str) -> None:
    """The same work, with each backward as early as possible (Narayanan et al. 2019)."""
    clock = timed(made(order, RANKS, MICROBATCHES))
    paint(ax, clock, 3 * (MICROBATCHES + RANKS - 1))
    if order == "1f1b":
        frame = {"edgecolor": INK, "linewidth": 2}
        for rank, events in enumerate(clock.ranks):
            ahead = [(event.start, event.end - event.start) for event in events[: RANKS - 1 - rank]]
            ax.broken_barh(ahead, (rank - 0.36, 0.72), facecolors="none", **frame)
        words = "ahead: p - 1 - r on rank r of p"
        ax.barh(0, 0, 0, facecolor="none", label=words, **frame)
        explain(ax)


def alt_pipeline_chunks(chunks: int) -> str:
    clock = timed(made("interleaved", 2, 4, chunks))
    first = " ".join(str(event.operation) for event in clock.ranks[0])
    whole = timed(made("interleaved", 2, 4)).bubble(0)
    beside = f", with one chunk for {whole:g}" if chunks > 1 else ""
    return f"""2 ranks, 4 microbatches, {plural(chunks, "chunk")} a rank: each rank idles for
    {clock.bubble(0):g} forwards' time{beside}. Dark boxes are a rank's first chunk, light ones its
    second; rank 0 runs {first}, where a number behind the point is the chunk."""


@schematic(alt_pipeline_chunks, 10, 2.4, chunks=(1, 2, 2))
def pipeline_chunks(ax: Axes, chunks: int) -> None:
    """The same work, in stages of half the length (Narayanan et al. 2021)."""
    paint(ax, timed(made("interleaved", 2, 4, chunks)), 15, "time (forwards)")
    if chunks > 1:
        for kind, name in (("F", "forward"), ("B", "backward")):
            color = drawing.color_of(Operation(kind, 0, 1))
            ax.barh(0, 0, 0, color=color, label=f"{name}, second chunk")
        explain(ax)
