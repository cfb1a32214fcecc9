"""Draws a pipeline schedule: as planned, as executed, or as the planner times it.

    show.draw_schedule(make_schedule("1f1b", 4, 8))            a forward takes 1, a backward 2
    show.draw_schedule(executed(results.traces), unit="ms")    what the executor's ranks did
    show.draw_schedule(timeline(run), unit="s")                the planner's step

A box is an operation with its microbatch's number; the bubble is hatched. A rank's first chunk is
dark, later ones are lighter, as the legend says.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from minitrain.lab.drawing.colors import BLUE, GREEN, ORANGE, ink_on, lighter
from minitrain.lab.drawing.figures import drawing, finish
from minitrain.lab.drawing.shapes import IDLE
from minitrain.parallel.pipeline.operations import Operation, Schedule
from minitrain.parallel.pipeline.timeline import Clocked, clocked, peak_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes

KINDS = {"F": (BLUE, "forward"), "B": (ORANGE, "backward"), "W": (GREEN, "weight gradients")}
SCALES = {"ms": 1e3, "µs": 1e6}  # of a clock in seconds; any other unit is drawn as it is
CHARACTER = 0.009  # the width of a digit, as a share of the axis
LEGEND = {"loc": "lower right", "bbox_to_anchor": (1.0, 1.0), "ncols": 4, "borderaxespad": 0}


def draw_schedule(
    schedule: Schedule | Clocked,
    *,
    unit: str = "forwards",
    title: str = "",
    alt: str = "",
    caption: str = "",
    ax: Axes | None = None,
) -> None:
    """Displays it, with its bubble and its peak of live activations in the caption."""
    clock = clocked(schedule) if isinstance(schedule, Schedule) else schedule
    title = title or (schedule.name if isinstance(schedule, Schedule) else "")
    words = summary(clock)
    alt = alt or f"Timeline of a pipeline's operations, rank by rank. {words}"
    height = 1.5 + 0.42 * len(clock.ranks)
    with drawing(ax, alt, caption or words, width=10, height=height) as axes:
        draw(axes, clock, unit, title)
        explain_lighter(axes, clock)


def summary(clock: Clocked) -> str:
    """ "4 ranks, 8 microbatches: …", for the caption and the alt text."""
    ranks = range(len(clock.ranks))
    orders = [[event.operation for event in events] for events in clock.ranks]
    count = 1 + max(operation.microbatch for order in orders for operation in order)
    bubble = max(clock.bubble(r) / clock.busy(r) for r in ranks)
    live, chunks = ", ".join(str(peak_of(order)) for order in orders), chunks_of(clock)
    of_what = f", of 1/{chunks} of a rank's layers each" if chunks > 1 else ""
    return (
        f"{len(orders)} ranks, {count} microbatches: the longest bubble is {bubble:.0%} of a "
        f"rank's work; activations alive at once{of_what}, rank by rank: {live}."
    )


def chunks_of(clock: Clocked) -> int:
    """The number of model chunks on a rank."""
    return 1 + max(event.operation.chunk for events in clock.ranks for event in events)


def draw(axes: Axes, clock: Clocked, unit: str, title: str) -> None:
    scale = SCALES.get(unit, 1.0)
    whole = clock.makespan * scale
    kinds = {event.operation.kind for events in clock.ranks for event in events}
    for rank, events in enumerate(clock.ranks):
        axes.barh(rank, whole, 0.72, **IDLE)
        spans = [(e.start * scale, (e.end - e.start) * scale) for e in events]
        colors = [color_of(e.operation) for e in events]
        axes.broken_barh(spans, (rank - 0.36, 0.72), facecolors=colors, edgecolor="white")
        for event, (start, length) in zip(events, spans):
            number = str(event.operation.microbatch)
            if length > CHARACTER * whole * len(number):
                place = {"ha": "center", "va": "center", "fontsize": 8}
                ink = ink_on(color_of(event.operation))
                axes.text(start + length / 2, rank, number, color=ink, **place)
    for kind, (color, name) in KINDS.items():
        if kind in kinds:
            is_half = kind == "B" and "W" in kinds
            axes.barh(0, 0, 0, color=color, label=f"{name}, of the input" if is_half else name)
    axes.barh(0, 0, 0, label="bubble", **IDLE)
    axes.set_yticks(range(len(clock.ranks)), [f"rank {r}" for r in range(len(clock.ranks))])
    axes.set_ylim(len(clock.ranks) - 0.5, -0.5)
    axes.set_xlim(0, whole)
    axes.grid(axis="y", visible=False)
    finish(axes, f"time ({unit})", "", title)
    axes.legend(**LEGEND)


def explain_lighter(axes: Axes, clock: Clocked) -> None:
    """Explains lighter boxes in the legend, if there are any."""
    chunks = chunks_of(clock)
    if chunks > 1:
        name = "second chunk" if chunks == 2 else "later chunks"
        axes.barh(0, 0, 0, color=color_of(Operation("F", 0, 1)), label=f"lighter: {name}")
        axes.legend(**{**LEGEND, "ncols": 5})


def color_of(operation: Operation) -> tuple[float, ...]:
    """The kind's colour, lighter for later chunks."""
    return lighter(KINDS[operation.kind][0], min(1 - 0.5**operation.chunk, 0.75))
