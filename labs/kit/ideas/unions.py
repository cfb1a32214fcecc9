"""Union-find: pairs join groups, each of which is named by its first page."""

from __future__ import annotations

from typing import TYPE_CHECKING

from minitrain.lab.drawing.display import BLUE, GREEN, ORANGE, PINK
from minitrain.lab.drawing.figures import lighter
from minitrain.lab.drawing.shapes import arrow, bare, box, say
from minitrain.lab.ideas.schematic import Schematic

if TYPE_CHECKING:
    from matplotlib.axes import Axes

PAIRS = ((3, 7), (2, 5), (0, 3), (5, 6), (7, 1))
COUNT = 8
HUES = (BLUE, ORANGE, GREEN, PINK)


def parents(read: int) -> list[int]:
    """After so many pairs: the parent of each page."""
    parent = list(range(COUNT))
    for pair in PAIRS[:read]:
        low, high = sorted(root(parent, page) for page in pair)
        parent[high] = low
    return parent


def root(parent: list[int], page: int) -> int:
    while parent[page] != page:
        page = parent[page]
    return page


def depth(parent: list[int], page: int) -> int:
    return 0 if parent[page] == page else 1 + depth(parent, parent[page])


def draw_unions(ax: Axes, pairs_read: int) -> None:
    bare(ax, 11.4, 5.0)
    parent = parents(pairs_read)
    for number, (i, j) in enumerate(PAIRS):
        done = number < pairs_read
        style = {"edgecolor": "#cccccc"}
        color = lighter(GREEN, 0.6) if done else "white"
        box(ax, 0.2 + 1.5 * number, 0.15, 1.3, 0.5, color, f"{i} ~ {j}", 9, **style)
    say(ax, 7.8, 0.4, "pairs, as they come\ngreen: they are read", 9, ha="left")
    groups = sorted({root(parent, page) for page in range(COUNT)})
    for page in range(COUNT):
        x, y = 0.3 + 1.05 * page, 1.3 + 0.95 * depth(parent, page)
        hue = HUES[groups.index(root(parent, page)) % len(HUES)]
        is_root = parent[page] == page
        box(ax, x, y, 0.7, 0.55, hue if is_root else lighter(hue, 0.65), str(page), 10)
        if not is_root:
            above = parent[page]
            end = 0.65 + 1.05 * above, 1.87 + 0.95 * depth(parent, above)
            arrow(ax, (x + 0.35, y), end, "#777777")
    firsts = [root(parent, page) for page in range(COUNT)]
    say(ax, 0.3, 4.7, f"first of each page's group: {firsts}", 9.5, ha="left")
    say(ax, 8.9, 1.6, "full colour: a root,\nwhich is kept\npale: dropped", 9, ha="left")


def say_unions(pairs_read: int) -> str:
    parent = parents(pairs_read)
    firsts = [root(parent, page) for page in range(COUNT)]
    return (
        f"After {pairs_read} of {len(PAIRS)} pairs there are {len(set(firsts))} groups of pages. "
        f"Each page points to a parent, a root to itself; the first pages are {firsts}. A pair "
        "joins the roots of its two pages, the higher below the lower."
    )


union_of_pairs = Schematic(draw_unions, say_unions, (9.5, 4.0), {"pairs_read": (0, len(PAIRS), 4)})
