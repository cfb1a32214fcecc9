"""Prompt lookup: where the text's last tokens stood before, what followed there is drafted."""

from __future__ import annotations

from typing import TYPE_CHECKING

from minitrain.lab.drawing.display import BLUE, GREEN
from minitrain.lab.drawing.figures import lighter
from minitrain.lab.drawing.shapes import PALE, arrow, bare, box, say
from minitrain.lab.ideas.schematic import Schematic
from minitrain.words import plural

if TYPE_CHECKING:
    from matplotlib.axes import Axes

BEGUN = ["Ella", "saw", "a", "red", "pot", "and", "went", "home", "."]
WORDS = [*BEGUN, "Ben", "saw", "a", "red", "pot"]
LONGEST, MOST = 3, 3
ENDS = {"Ben": 10, "saw": 11, "a": 12, "pot": 14}  # how many words are told
WIDE = 0.86


def found(count: int) -> tuple[int, int]:
    """Where the latest earlier n-gram begins that the text of `count` words ends with, and n."""
    text = WORDS[:count]
    for size in range(LONGEST, 0, -1):
        for start in range(count - size - 1, -1, -1):
            if text[start : start + size] == text[-size:]:
                return start, size
    return 0, 0


def drafted(count: int) -> list[str]:
    start, size = found(count)
    return WORDS[:count][start + size : start + size + MOST] if size else []


def draw_found_again(ax: Axes, end: str) -> None:
    count = ENDS[end]
    start, size = found(count)
    bare(ax, 15.9, 3.0)
    for place, word in enumerate(WORDS[:count]):
        again = size and (start <= place < start + size or place >= count - size)
        follows = size and start + size <= place < start + size + MOST
        color = BLUE if again else GREEN if follows else PALE
        box(ax, 0.3 + 0.9 * place, 1.2, WIDE, 0.6, color, word, 9)
    say(ax, 0.3, 0.7, f"the text: {count} tokens", 9, ha="left")
    drafts = drafted(count)
    for place, word in enumerate(drafts):
        style = {"edgecolor": "#222222", "linestyle": "--"}
        box(ax, 0.3 + 0.9 * (count + place), 1.2, WIDE, 0.6, lighter(GREEN, 0.6), word, 9, **style)
    if size:
        x, y = 0.3 + 0.9 * (count - size / 2), 0.3 + 0.9 * (start + size / 2)
        arrow(ax, (x, 1.15), (y, 1.15), bend=0.25)
        x, y = (0.3 + 0.9 * (at + len(drafts) / 2) for at in (start + size, count))
        arrow(ax, (x, 1.85), (y, 1.85), bend=0.15)
    words = f"dashed: drafts, what followed there, at most {MOST}"
    say(ax, 0.3, 2.75, words if size else "found nowhere: no draft", 9, ha="left")


def say_found_again(end: str) -> str:
    start, size = found(ENDS[end])
    last = WORDS[: ENDS[end]][-3:]
    told = " ".join(last[last.index(".") + 1 :] if "." in last else last)  # a title ends at a dot
    if not size:
        return f"After “{told}”: nothing is drafted. “{end}” has not stood in the text before."
    again = " ".join(WORDS[start : start + size])
    drafts = " ".join(drafted(ENDS[end]))
    return (
        f"After “{told}”: the last {plural(size, 'token')} stood before. The longest end of the "
        f"text that is found again is “{again}”; what followed it is drafted: “{drafts}”. "
        "Nothing is computed for it."
    )


found_again = Schematic(draw_found_again, say_found_again, (10.5, 2.4), {"end": (list(ENDS), "a")})
