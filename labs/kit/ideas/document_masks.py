"""Three documents and padding in a row of thirteen places: who looks at whom, where each begins."""

from __future__ import annotations

from typing import TYPE_CHECKING

from minitrain.lab.drawing.display import BLUE, GREEN, ORANGE
from minitrain.lab.drawing.figures import lighter
from minitrain.lab.drawing.shapes import PALE, bare, box, say
from minitrain.lab.ideas.schematic import Schematic

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SIZES = (3, 3, 2)  # tokens, each after an end
LENGTH = 13
HUES = (BLUE, ORANGE, GREEN)
SIDE, LEFT, TOP = 0.42, 3.2, 1.75
CAUSAL, PACKED = "causal alone", "documents apart"


def owners() -> list[int]:
    """Whose place each is; -1 is padding."""
    own = [number for number, size in enumerate(SIZES) for _ in range(size + 1)]
    return own + [-1] * (LENGTH - len(own))


def positions() -> list[int]:
    own = owners()
    return [place - own.index(owner) for place, owner in enumerate(own)]


def looks(place: int, other: int, mask: str) -> bool:
    own = owners()
    return other <= place and (mask == CAUSAL or own[place] == own[other])


def token(place: int) -> str:
    owner, at = owners()[place], positions()[place]
    return "end" if at == 0 or owner < 0 else f"{'abc'[owner]}{at}"


def draw_masks(ax: Axes, mask: str) -> None:
    bare(ax, 13.4, TOP + SIDE * LENGTH + 0.4)
    targets = [token(p + 1) if p + 1 < LENGTH else "–" for p in range(LENGTH)]
    rows = {
        "read": [token(place) for place in range(LENGTH)],
        "asked for": ["–" if o < 0 else t for o, t in zip(owners(), targets)],
        "position": [str(p) for p in positions()],
    }
    for row, (name, texts) in enumerate(rows.items()):
        say(ax, LEFT - 0.2, 0.3 + 0.45 * row, name, 9, ha="right", fontweight="bold")
        for place, text in enumerate(texts):
            hue = PALE if owners()[place] < 0 else lighter(HUES[owners()[place]], 0.6)
            box(ax, LEFT + 0.72 * place, 0.1 + 0.45 * row, 0.68, 0.4, hue, text, 8)
    left = LEFT + 1.4
    for place in range(LENGTH):
        owner = owners()[place]
        say(ax, left - 0.2, TOP + SIDE * (place + 0.5), token(place), 8, ha="right")
        for other in range(LENGTH):
            may = looks(place, other, mask)
            across = may and owner != owners()[other]
            hue = "#777777" if across else "#bbbbbb" if owner < 0 else HUES[owner]
            color = hue if may else "white"
            box(ax, left + SIDE * other, TOP + SIDE * place, SIDE - 0.04, SIDE - 0.04, color,
                edgecolor="#dddddd")  # fmt: skip
    another = "dark grey: another\ndocument's place\n" if wrong(mask) else ""
    words = (
        f"each row: a place\ncolumns: what it looks at\n\n{another}light grey: padding,\n"
        "asked for nothing: –"
    )
    say(ax, left + SIDE * LENGTH + 0.3, TOP + 1.6, words, 9, ha="left")


def wrong(mask: str) -> int:
    """How many pairs reach across a border."""
    own, places = owners(), range(LENGTH)
    return sum(looks(p, q, mask) and own[p] != own[q] for p in places for q in places)


def say_masks(mask: str) -> str:
    return (
        f"Three documents in a row, {mask}: {wrong(mask)} looks reach into another document. Each "
        f"is read after an end and asked for its own end; positions are {positions()}. Padding, at "
        "the end of the row, is asked for nothing and looks at itself."
    )


document_mask = Schematic(draw_masks, say_masks, (9.5, 5.0), {"mask": ([CAUSAL, PACKED], PACKED)})
