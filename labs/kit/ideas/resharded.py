"""A flat tensor in the files of n ranks, wanted by m: which rank reads what of which file."""

from __future__ import annotations

from typing import TYPE_CHECKING

from minitrain.lab.drawing.display import BLUE, GREEN, ORANGE, PINK
from minitrain.lab.drawing.figures import lighter
from minitrain.lab.drawing.shapes import bare, box, say
from minitrain.lab.ideas.schematic import Schematic
from minitrain.words import plural

if TYPE_CHECKING:
    from matplotlib.axes import Axes

ELEMENTS = 22
COLORS = [BLUE, ORANGE, GREEN, PINK, "#7A5C00", "#444444"]
LEFT, CELL, HIGH = 2.2, 0.36, 0.5


def size(ranks: int) -> int:
    """Elements of a part, padding among them."""
    return -(-ELEMENTS // ranks)


def pieces(old: int, new: int) -> list[tuple[int, int, int, int]]:
    """(rank, file, start, stop) of each read, in the whole tensor's elements."""
    found = []
    for rank in range(new):
        for file in range(old):
            start = max(rank * size(new), file * size(old))
            stop = min((rank + 1) * size(new), (file + 1) * size(old), ELEMENTS)
            if start < stop:
                found.append((rank, file, start, stop))
    return found


def draw_resharding(ax: Axes, old: int, new: int) -> None:
    longest = max(old * size(old), new * size(new))
    bare(ax, LEFT + CELL * longest + 0.3, 3.0)
    gap = 0.06
    for row, (ranks, word) in enumerate(((old, "file"), (new, "rank"))):
        y = 0.55 + 1.45 * row
        say(ax, LEFT - 0.2, y + HIGH / 2, plural(ranks, word), ha="right")
        for part in range(ranks):
            x = LEFT + CELL * part * size(ranks)
            say(ax, x + CELL * size(ranks) / 2, y - 0.22, f"{word} {part}", 8.5)
            for place in range(part * size(ranks), (part + 1) * size(ranks)):
                owner = place // size(new)
                inside = place < ELEMENTS
                color = COLORS[owner] if inside else "white"
                style = {} if inside else {"edgecolor": "#c4c4c4", "linestyle": "--"}
                words = "" if inside else "?" if word == "file" else "0"
                box(ax, LEFT + CELL * place, y, CELL - gap, HIGH, color, words, 8, **style)
            wide = CELL * size(ranks) - gap
            outline = [x, x + wide, x + wide, x, x], [y, y, y + HIGH, y + HIGH, y]
            ax.plot(*outline, color="#444444", linewidth=1.2)
    for rank, _, start, stop in pieces(old, new):
        x = (LEFT + CELL * start, LEFT + CELL * stop - gap)
        ax.fill_between(x, 0.55 + HIGH, 2.0, color=lighter(COLORS[rank], 0.75), linewidth=0)
    legend = "a colour: a new rank    a pale band: a read    dashed: padding, "
    say(ax, LEFT, 2.8, legend + "anything in a file, 0 on a rank", 9, ha="left")


def say_resharding(old: int, new: int) -> str:
    reads = pieces(old, new)
    most = max(sum(rank == other for other, *_ in reads) for rank in range(new))
    who, how_often = plural(new, "rank"), plural(len(reads), "read")
    return (
        f"{ELEMENTS} elements in {old} files, read by {who}: {how_often}. "
        f"A part has {size(old)} elements in the files and {size(new)} on the ranks, padding "
        f"counted, which may be anything in a file and is 0 on a rank; a rank reads from at most "
        f"{plural(most, 'file')}."
    )


resharding = Schematic(
    draw_resharding,
    say_resharding,
    (10.0, 2.7),
    {"old": ([2, 3, 4], 4), "new": ([1, 2, 3, 4, 6], 3)},
)
