"""A save that the training waits for, and one that is written beside it. Units: one step's time."""

from __future__ import annotations

from typing import TYPE_CHECKING

from minitrain.lab.drawing.display import BLUE, ORANGE, PINK
from minitrain.lab.drawing.shapes import bare, box, say
from minitrain.lab.ideas.schematic import Schematic
from minitrain.words import plural

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COPY, WRITE, EVERY, END = 0.35, 3.0, 4, 20.0
LEFT, HIGH = 1.6, 0.55
Span = tuple[str, float, float, str]  # lane, start, end, what


def spans(way: str) -> list[Span]:
    """What each lane does until END: a save after every fourth step."""
    now, free, steps, found = 0.0, 0.0, 0, list[Span]()
    while now + 1 <= END:
        found.append(("training", now, now + 1, "step"))
        now, steps = now + 1, steps + 1
        if steps % EVERY:
            continue
        if way == "waits":
            found += [("training", now, now + WRITE, "waits"), ("disk", now, now + WRITE, "write")]
            now += WRITE
        else:
            now = max(now, free)  # one save at a time
            found.append(("training", now, now + COPY, "copy"))
            now += COPY
            free = now + WRITE
            found.append(("disk", now, free, "write"))
    return found


def steps_done(way: str) -> int:
    return sum(what == "step" for _, _, _, what in spans(way))


def draw_saving(ax: Axes, way: str) -> None:
    bare(ax, LEFT + END + 2.2, 2.95)
    colors = {"step": BLUE, "copy": PINK, "write": ORANGE}
    for row, lane in enumerate(("training", "disk")):
        y = 0.3 + 0.9 * row
        say(ax, LEFT - 0.2, y + HIGH / 2, lane, ha="right")
        for own, start, end, what in spans(way):
            if own != lane:
                continue
            if what == "waits":
                box(ax, LEFT + start, y, end - start - 0.05, HIGH, "white", "waits", 8,
                    edgecolor="#c4c4c4", linestyle="--")  # fmt: skip
            else:
                words = what if end - start > 0.9 else ""
                box(ax, LEFT + start, y, end - start - 0.05, HIGH, colors[what], words, 8)
    ax.plot([LEFT, LEFT + END], [1.95, 1.95], color="#666666", linewidth=1)
    for time in range(0, int(END) + 1, 5):
        ax.plot([LEFT + time] * 2, [1.95, 2.02], color="#666666", linewidth=1)
        say(ax, LEFT + time, 2.2, str(time), 8.5)
    say(ax, LEFT - 0.2, 2.2, "time", 9, ha="right")
    legend = "orange: bytes on their way to the disk"
    if way == "beside":
        waits = plural(steps_done("waits"), "step")
        legend = f"pink: the copy in memory    {legend}    if training waited for the disk: {waits}"
    say(ax, LEFT, 2.7, legend, 9, ha="left")


def say_saving(way: str) -> str:
    how = {
        "waits": "Training waits while the disk writes",
        "beside": "A short copy, and the disk writes beside the next steps",
    }
    last = f" Where training waits, it makes {steps_done('waits')}." if way == "beside" else ""
    return (
        f"{how[way]}: {plural(steps_done(way), 'step')} in {END:g} steps' time. Two lanes, "
        f"training and disk, a save after every {EVERY} steps; a write takes {WRITE:g}, "
        f"a copy {COPY:g}.{last}"
    )


saving_beside = Schematic(
    draw_saving, say_saving, (10.0, 2.6), {"way": (["waits", "beside"], "beside")}
)
