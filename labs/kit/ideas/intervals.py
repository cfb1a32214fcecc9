"""How often to save: saves cost while all is well, and what was not saved is lost in a failure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from minitrain.lab.drawing.display import BLUE, ORANGE, PINK
from minitrain.lab.drawing.shapes import bare, box, say
from minitrain.lab.ideas.schematic import Schematic

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SAVE, RESTART, END = 2.0, 3.0, 100.0  # minutes
FAILURES = (31.0, 74.0)
LEFT, SCALE, HIGH = 0.2, 0.1, 0.6
Span = tuple[float, float, str]  # from, to, what


def spans(interval: float) -> list[Span]:
    """train, lost (trained, and not saved), save, restart."""
    now, found = 0.0, list[Span]()
    for failure in (*FAILURES, END):
        while now < failure:
            end = min(now + interval, failure)
            done = min(end + SAVE, failure)
            is_saved = end + SAVE <= failure or failure == END
            found.append((now, end, "train" if is_saved else "lost"))
            if done > end:
                found.append((end, done, "save"))
            now = max(end, done)
        if failure < END:
            found.append((failure, failure + RESTART, "restart"))
            now = failure + RESTART
    return found


def minutes(interval: float, what: str) -> float:
    return sum(end - start for start, end, kind in spans(interval) if kind == what)


def draw_intervals(ax: Axes, interval: float) -> None:
    bare(ax, LEFT + SCALE * END + 0.2, 1.9)
    colors = {"train": BLUE, "lost": ORANGE, "save": PINK, "restart": "#444444"}
    for start, end, what in spans(interval):
        words = what if end - start > 6 else ""
        wide = SCALE * (end - start)
        box(
            ax, LEFT + SCALE * start, 0.35, wide - min(0.03, wide / 3), HIGH, colors[what], words, 8
        )
    for failure in FAILURES:
        say(ax, LEFT + SCALE * failure, 0.18, "✗", 11, fontweight="bold")
    for place in range(0, int(END) + 1, 20):
        x = LEFT + SCALE * place
        ax.plot([x, x], [1.02, 1.09], color="#666666", linewidth=1)
        say(ax, x, 1.25, str(place), 8.5)
    legend = "minutes    blue: trained    pink: a save    orange: trained and lost    ✗ a failure"
    legend += "    dark: restart"
    say(ax, LEFT, 1.65, legend, 9, ha="left")
    ax.plot([LEFT, LEFT + SCALE * END], [1.02, 1.02], color="#666666", linewidth=1)


def say_intervals(interval: float) -> str:
    kept, saves = minutes(interval, "train"), minutes(interval, "save")
    return (
        f"A save of {SAVE:g} minutes after every {interval:g}: {kept:.0f} of {END:g} minutes "
        f"train, {saves:.0f} save, {minutes(interval, 'lost'):.0f} are lost, "
        f"{minutes(interval, 'restart'):.0f} restart. Two failures, each followed by a restart of "
        f"{RESTART:g} minutes; what was trained since the last save is trained again."
    )


checkpoint_intervals = Schematic(
    draw_intervals, say_intervals, (10.0, 1.9), {"interval": ([4, 8, 16, 32], 16)}
)
