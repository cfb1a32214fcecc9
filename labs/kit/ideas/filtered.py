"""Pages that go from rule to rule: each leaves at the first that it fails, and keeps the reason.

The order decides who is counted for what, and never what is dropped.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from minitrain.lab.drawing.display import GREEN, ORANGE
from minitrain.lab.drawing.figures import lighter
from minitrain.lab.drawing.shapes import PALE, arrow, bare, box, say
from minitrain.lab.ideas.schematic import Schematic

if TYPE_CHECKING:
    from matplotlib.axes import Axes

PAGES = {  # what each rule would say of it
    "prose": (),
    "a menu": ("bullets", "stop words"),
    "a stub": ("words", "stop words"),
    "keywords": ("stop words",),
    "teasers": ("ellipses", "broken lines"),
}
RULES = ("words", "ellipses", "bullets", "broken lines", "stop words")
FAILS = {  # who does is dropped
    "words": "fewer than 50",
    "ellipses": "over 0.1 a word",
    "bullets": "over 0.9 of lines",
    "broken lines": "over 0.3 of lines",
    "stop words": "fewer than 2",
}
LEFT, WIDE, HIGH = 1.7, 1.75, 0.62


def reason(page: str, order: str) -> str:
    """The first rule that it fails, "" where it passes all."""
    rules = RULES if order == "as published" else RULES[::-1]
    return next((rule for rule in rules if rule in PAGES[page]), "")


def draw_first_rule(ax: Axes, order: str) -> None:
    bare(ax, LEFT + WIDE * len(RULES) + 1.5, 1.55 + HIGH * len(PAGES))
    rules = RULES if order == "as published" else RULES[::-1]
    for column, rule in enumerate(rules):
        say(ax, LEFT + WIDE * (column + 0.45), 0.4, rule, 9, fontweight="bold")
        say(ax, LEFT + WIDE * (column + 0.45), 0.75, FAILS[rule], 8.5)
    say(ax, LEFT - 0.2, 0.75, "dropped if", 8.5, ha="right")
    for row, page in enumerate(PAGES):
        y, failed = 1.05 + HIGH * row, reason(page, order)
        say(ax, LEFT - 0.2, y + 0.22, page, 9, ha="right")
        for column, rule in enumerate(rules):
            gone = failed in rules[:column] and bool(failed)
            color = ORANGE if rule == failed else "white" if gone else lighter(GREEN, 0.55)
            words = "drop" if rule == failed else "" if gone else "pass"
            box(ax, LEFT + WIDE * column, y, WIDE * 0.9, 0.45, color, words, 9,
                edgecolor=PALE if gone else "none")  # fmt: skip
        if not failed:
            end = LEFT + WIDE * len(RULES)
            arrow(ax, (end - 0.1, y + 0.22), (end + 0.4, y + 0.22), GREEN)
            say(ax, end + 0.5, y + 0.22, "kept", 9, ha="left")
    say(ax, LEFT, 1.25 + HIGH * len(PAGES), "white: not asked any more", 9, ha="left")


def say_first_rule(order: str) -> str:
    counted = ", ".join(f"{page}: {reason(page, order)}" for page in PAGES if reason(page, order))
    return (
        f"Five pages and five of Gopher's rules, {order}: prose is kept, four pages are dropped. "
        f"The reasons are {counted}. Another order drops the same pages for other reasons."
    )


first_rule = Schematic(
    draw_first_rule, say_first_rule, (9.5, 3.5), {"order": ["as published", "turned round"]}
)
