"""A round of speculation: drafts one after the other, one pass of the target, and what is kept."""

from __future__ import annotations

from typing import TYPE_CHECKING

from minitrain.lab.drawing.display import BLUE, GREEN, ORANGE
from minitrain.lab.drawing.shapes import IDLE, PALE, arrow, bare, box, say
from minitrain.lab.ideas.schematic import Schematic
from minitrain.words import plural

if TYPE_CHECKING:
    from matplotlib.axes import Axes

DRAFTS = ["there", "was", "a", "little"]
INSTEAD = ["in", "lived", "once", "young", "girl"]  # the target's own, after so many drafts
LEFT, ACROSS, WIDE, HIGH = 4.2, 1.65, 1.4, 0.72


def told(kept: int) -> list[str]:
    """The new text: the kept drafts, and one token of the target's."""
    return [*DRAFTS[:kept], INSTEAD[kept]]


def verdict(place: int, kept: int) -> str:
    """What the target makes of the draft at this place; nothing of those behind a rejected one."""
    if place >= len(DRAFTS) or place > kept:
        return ""
    return "keeps" if place < kept else "rejects"


def draw_round(ax: Axes, kept: int) -> None:
    bare(ax, LEFT + 5 * ACROSS + 0.1, 5.2)
    rows = {
        0.3: "draft model:\n4 passes, cheap",
        1.9: "target: one pass\nover 5 tokens",
        3.5: "new text",
    }
    for y, words in rows.items():
        say(ax, LEFT - ACROSS - 0.2, y + HIGH / 2, words, 9, ha="right")
    style = {"edgecolor": "#999999", "linestyle": "--"}
    box(ax, LEFT - ACROSS, 0.3, WIDE, HIGH, "white", "the text's\nlast token", **style)
    for place, word in enumerate(["", *DRAFTS]):
        x = LEFT + ACROSS * (place - 1)
        if place:
            box(ax, x, 0.3, WIDE, HIGH, PALE, word)
            arrow(ax, (x - ACROSS + WIDE, 0.3 + HIGH / 2), (x, 0.3 + HIGH / 2))
        arrow(ax, (x + WIDE / 2, 0.3 + HIGH), (x + ACROSS + WIDE / 2, 1.9), "#8a8a8a")
    words = "each token gives $p$,\nof the token after it"
    say(ax, LEFT - ACROSS - 0.2, 1.45, words, 8.5, ha="right")
    for place in range(len(DRAFTS) + 1):
        words, said = f"$p_{place + 1}$", verdict(place, kept)
        words += f" {said}\n“{DRAFTS[place]}”" if said else ""
        box(ax, LEFT + ACROSS * place, 1.9, WIDE, HIGH, BLUE, words)
    text = told(kept)
    for place in range(len(DRAFTS) + 1):
        x = LEFT + ACROSS * place
        if place < len(text):
            color = GREEN if place < kept else ORANGE
            box(ax, x, 3.5, WIDE, HIGH, color, text[place])
            arrow(ax, (x + WIDE / 2, 1.9 + HIGH), (x + WIDE / 2, 3.5))
        else:
            box(ax, x, 3.5, WIDE, HIGH, **_idle())
    last = "bonus" if kept == len(DRAFTS) else "replacement"
    names = {"kept draft": GREEN, last: ORANGE, "dropped, and cut from the caches": None}
    for n, (name, color) in enumerate(names.items()):
        x = LEFT + 2.2 * n
        box(ax, x, 4.6, 0.3, 0.3, **({"color": color} if color else _idle()))
        say(ax, x + 0.42, 4.75, name, 9, ha="left")


def _idle() -> dict:
    return {"color": "white"} | {key: value for key, value in IDLE.items() if key != "facecolor"}


def say_round(kept: int) -> str:
    last = "a bonus token" if kept == len(DRAFTS) else "a replacement"
    return (
        f"{kept} of 4 drafts are kept: {plural(kept + 1, 'token')} by one pass of the target. A "
        "small model drafts 4 tokens one after the other; the target reads all of them at once, "
        "after the text's last token. What it makes of a token is its distribution of the next, by "
        "which that draft is kept or rejected. The new text is "
        f"{' '.join(told(kept))}, whose last token is {last} of the target's own."
    )


speculative_round = Schematic(draw_round, say_round, (9.5, 4.0), {"kept": (0, 4, 2)})
