"""What a power cut leaves after each operation of a save: worked out on the emulated disk."""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING

from minitrain.lab.drawing.display import BLUE, GREEN, ORANGE
from minitrain.lab.drawing.shapes import PALE, arrow, bare, box, say
from minitrain.lab.ideas.schematic import Schematic
from minitrain.reliability.disk import FragileDisk

if TYPE_CHECKING:
    from matplotlib.axes import Axes

OLD, NEW, TEMPORARY = "step-04", "step-08", ".new"
WAYS: dict[str, list[tuple[str, ...]]] = {
    "in place": [("write", OLD), ("flush", OLD)],
    "renamed, not flushed": [("write", TEMPORARY), ("rename", TEMPORARY, NEW)],
    "flushed, then renamed": [
        ("write", TEMPORARY),
        ("flush", TEMPORARY),
        ("rename", TEMPORARY, NEW),
        ("flush_names",),
    ],
}
KINDS = {
    "the old one": BLUE,
    "the new one": GREEN,
    "a torn one": ORANGE,
}
LEFT, WIDE, HIGH = 0.3, 2.6, 0.5


def sealed(data: bytes) -> bytes:
    return zlib.crc32(data).to_bytes(4, "little") + data


def newest(disk: FragileDisk) -> str:
    """Which checkpoint a reader takes, who goes by names alone."""
    content = disk.read(max(name for name in disk.names() if name.startswith("step-")))
    if content == sealed(b"the new state"):
        return "the new one"
    return "the old one" if content == sealed(b"the old state") else "a torn one"


def outcomes(way: str) -> list[tuple[str, list[str]]]:
    """(operation, what may be the newest after a cut that follows it), from before the first."""
    disk = FragileDisk({OLD: sealed(b"the old state")})
    found = [("before", ["the old one"])]
    for operation, *names in WAYS[way]:
        data = [sealed(b"the new state")] if operation == "write" else []
        getattr(disk, operation)(*names, *data)
        possible = {newest(left) for left in disk.after_cut()}
        words = operation.replace("_", " ") + (f" {names[0]}" if names else "")
        found.append((words, [kind for kind in KINDS if kind in possible]))
    return found


def draw_power_cuts(ax: Axes, way: str) -> None:
    bare(ax, LEFT + 5 * WIDE, 3.2)
    columns = outcomes(way)
    for number, (words, kinds) in enumerate(columns):
        x = LEFT + number * WIDE
        box(ax, x, 0.3, WIDE - 0.35, HIGH, PALE, words)
        if number + 1 < len(columns):
            arrow(ax, (x + WIDE - 0.35, 0.3 + HIGH / 2), (x + WIDE, 0.3 + HIGH / 2))
        for row, kind in enumerate(kinds):
            box(ax, x + 0.2, 1.15 + 0.6 * row, WIDE - 0.75, HIGH, KINDS[kind], kind)
        if len(kinds) > 1:
            y = 1.15 + 0.6 * len(kinds) / 2 - 0.05
            say(ax, x + WIDE - 0.5, y, "one of\nthese", 8.5, ha="left")
    say(ax, LEFT, 3.05, "below each operation: the newest checkpoint, if the power goes then",
        9, ha="left")  # fmt: skip


def say_power_cuts(way: str) -> str:
    columns = outcomes(way)
    torn = [words for words, kinds in columns if "a torn one" in kinds]
    never = "the newest is never torn"
    verdict = f"after {' and after '.join(torn)} the newest may be torn" if torn else never
    last = " or ".join(columns[-1][1])
    return (
        f"{way.capitalize()}: {verdict}. Columns of operations, and below "
        f"each what a power cut may leave as the newest checkpoint. After the last it is {last}."
    )


power_cuts = Schematic(
    draw_power_cuts, say_power_cuts, (10.0, 2.6), {"way": (list(WAYS), "renamed, not flushed")}
)
