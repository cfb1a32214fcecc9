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
LEFT, RIGHT, HIGH = 2.6, 13.3, 0.5  # the columns of a way share what is between


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
    found = [("(none yet)", ["the old one"])]
    for operation, *names in WAYS[way]:
        data = [sealed(b"the new state")] if operation == "write" else []
        getattr(disk, operation)(*names, *data)
        possible = {newest(left) for left in disk.after_cut()}
        words = operation.replace("_", " ") + (f" {names[0]}" if names else "")
        found.append((words, [kind for kind in KINDS if kind in possible]))
    return found


def draw_power_cuts(ax: Axes, way: str) -> None:
    bare(ax, RIGHT, 2.9)
    columns = outcomes(way)
    step = (RIGHT - LEFT) / len(columns)
    for y, words in ((0.55, "operation"), (1.4, "newest checkpoint,\nif the power goes then")):
        say(ax, LEFT - 0.25, y, words, ha="right")
    for number, (words, kinds) in enumerate(columns):
        x, wide = LEFT + number * step, step - 0.35
        if number:
            arrow(ax, (x - 0.35, 0.3 + HIGH / 2), (x, 0.3 + HIGH / 2))
        box(ax, x, 0.3, wide, HIGH, PALE if number else "white", words)
        for row, kind in enumerate(kinds):
            y = 1.15 + 0.6 * row
            box(ax, x, y, wide, HIGH, KINDS[kind], f"or {kind}" if row else kind)


def say_power_cuts(way: str) -> str:
    columns = outcomes(way)
    torn = [words for words, kinds in columns if "a torn one" in kinds]
    never = "the newest checkpoint is never torn"
    verdict = (
        f"after {' and after '.join(torn)} the newest checkpoint may be torn" if torn else never
    )
    last = " or ".join(columns[-1][1])
    return (
        f"{way.capitalize()}: {verdict}. Columns of operations, and below "
        f"each what a power cut may leave as the newest checkpoint. After the last it is {last}."
    )


power_cuts = Schematic(
    draw_power_cuts, say_power_cuts, (10.0, 2.4), {"way": (list(WAYS), "renamed, not flushed")}
)
