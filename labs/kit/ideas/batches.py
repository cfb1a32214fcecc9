"""Static and continuous batches, step by step: five texts, three rows.

After Orca (Yu et al. 2022), figure 3 and Sarathi (Agrawal et al. 2023) for chunks. A prompt's chunk
is one step here; its length is written on it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from minitrain.lab.drawing.display import BLUE, GREEN, ORANGE, PINK
from minitrain.lab.drawing.figures import lighter
from minitrain.lab.drawing.shapes import IDLE, bare, box, rectangle, say
from minitrain.lab.ideas.schematic import Schematic

if TYPE_CHECKING:
    from matplotlib.axes import Axes

ROWS = 3
ANSWERS = {"A": 3, "B": 8, "C": 5, "D": 4, "E": 2}  # steps, the first of which reads the prompt
HUES = dict(zip(ANSWERS, (BLUE, ORANGE, GREEN, PINK, "#666666")))
SIDE = 0.62


def static() -> list[list[str]]:
    """What each row computes in each step; "" is nothing."""
    rows: list[list[str]] = [[] for _ in range(ROWS)]
    names = list(ANSWERS)
    for first in range(0, len(names), ROWS):
        batch = names[first : first + ROWS]
        longest = max(ANSWERS[name] for name in batch)
        for row in range(ROWS):
            name = batch[row] if row < len(batch) else ""
            steps = ANSWERS.get(name, 0)
            rows[row] += [name] * steps + [""] * (longest - steps)
    return rows


def continuous() -> list[list[str]]:
    """The same where a row that is free takes the next text at once."""
    rows: list[list[str]] = [[] for _ in range(ROWS)]
    for name, steps in ANSWERS.items():
        row = min(rows, key=len)
        row += [name] * steps
    longest = max(map(len, rows))
    return [row + [""] * (longest - len(row)) for row in rows]


KINDS = {"static": static, "continuous": continuous}


def draw_batches(ax: Axes, kind: str) -> None:
    rows = KINDS[kind]()
    bare(ax, 1.4 + SIDE * len(static()[0]) + 0.4, 2.9)
    for row, steps in enumerate(rows):
        y = 0.65 + SIDE * row
        say(ax, 1.2, y + 0.28, f"row {row}", 9, ha="right")
        for step, name in enumerate(steps):
            x = 1.4 + SIDE * step
            if not name:
                ax.add_patch(rectangle(x, y, SIDE - 0.06, SIDE - 0.06, **idle()))
                continue
            begins = step == 0 or steps[step - 1] != name
            hue = HUES[name] if begins else lighter(HUES[name], 0.6)
            box(ax, x, y, SIDE - 0.06, SIDE - 0.06, hue, name, 9)
    say(ax, 1.4, 0.35, "steps", 9, ha="left", fontweight="bold")
    words = "dark: reads its prompt    pale: writes    hatched: a row for nobody"
    say(ax, 1.4, 2.72, words, 9, ha="left")


def idle() -> dict:
    return {"color": IDLE["facecolor"], **{k: v for k, v in IDLE.items() if k != "facecolor"}}


def say_batches(kind: str) -> str:
    rows = KINDS[kind]()
    empty = sum(name == "" for row in rows for name in row)
    return (
        f"{kind.capitalize()} batches: {len(rows[0])} steps of {ROWS} rows, {empty} of these "
        f"{ROWS * len(rows[0])} for nobody. "
        f"{len(ANSWERS)} texts of {', '.join(map(str, ANSWERS.values()))} steps are served in "
        f"{ROWS} rows. A static batch lasts as long as its longest text; in a continuous one the "
        "next text takes a row as soon as it is free."
    )


batches = Schematic(draw_batches, say_batches, (9.5, 2.6), {"kind": (list(KINDS), "static")})
