"""A tree of drafts: what each node reads, and at which position it stands."""

from __future__ import annotations

from typing import TYPE_CHECKING

from minitrain.lab.drawing.display import BLUE, GREEN
from minitrain.lab.drawing.figures import lighter
from minitrain.lab.drawing.shapes import PALE, arrow, bare, box, say
from minitrain.lab.ideas.schematic import Schematic

if TYPE_CHECKING:
    from matplotlib.axes import Axes

TEXT = ["Once", "upon"]
NODES = ["a", "the", "time", "day", "day", "there"]
PARENTS = [-1, -1, 0, 0, 1, 2]
HEIGHTS = [1.5, 3.6, 0.9, 2.2, 3.6, 0.9]  # of the nodes' boxes
CELL = 0.52


def way(node: int) -> list[int]:
    """The nodes from the text to this one, itself last."""
    before = way(PARENTS[node]) if PARENTS[node] >= 0 else []
    return [*before, node]


def position(node: int) -> int:
    return len(TEXT) + len(way(node)) - 1


def draw_tree_mask(ax: Axes, node: int) -> None:
    bare(ax, 13.4, 5.3)
    for place, word in enumerate(TEXT):
        box(ax, 0.2 + 1.15 * place, 2.2, 1.0, 0.5, GREEN, word, 9)
        say(ax, 0.7 + 1.15 * place, 2.95, f"{place}", 8.5)
    for at, word in enumerate(NODES):
        x, y = _spot(at)
        parent = PARENTS[at]
        start = (_spot(parent)[0] + 1.0, _spot(parent)[1] + 0.25) if parent >= 0 else (2.35, 2.45)
        arrow(ax, start, (x, y + 0.25))
        color = BLUE if at == node else GREEN if at in way(node) else PALE
        box(ax, x, y, 1.0, 0.5, color, word, 9)
        say(ax, x + 0.5, y + 0.72, f"node {at}, position {position(at)}", 8.5)
    left, top, count = 8.1, 1.0, len(NODES)
    heads = [*TEXT, *(str(at) for at in range(count))]
    for column, word in enumerate(heads):
        x = left + CELL * column + (0.15 if column >= len(TEXT) else 0)
        say(ax, x + CELL / 2, top - 0.25, word, 8.5, rotation=45 if column < len(TEXT) else 0)
        for row in range(count):
            read = column < len(TEXT) or column - len(TEXT) in way(row)
            ink = BLUE if row == node else lighter(GREEN, 0.5)
            box(ax, x, top + CELL * row, CELL - 0.05, CELL - 0.05, ink if read else PALE)
    middle = left + 0.15 + CELL * (len(TEXT) + count / 2)
    say(ax, middle, top - 0.6, "nodes", 8.5)
    for row in range(count):
        say(ax, left - 0.15, top + CELL * (row + 0.5), f"node {row}", 8.5, ha="right")
    say(ax, left, top + CELL * count + 0.45, "coloured: what a node reads", 9, ha="left")
    words = f"blue: node {node}    green: what it reads beside itself"
    say(ax, 0.2, 4.95, words, 9, ha="left")


def _spot(node: int) -> tuple[float, float]:
    return 2.9 + 1.6 * (len(way(node)) - 1), HEIGHTS[node]


def say_tree_mask(node: int) -> str:
    words = " ".join([*TEXT, *(NODES[at] for at in way(node))])
    return (
        f"Node {node} reads “{words}” and stands at position {position(node)}. Six drafts, "
        "three ways to go on, are read in one pass: each sees the text, its ancestors and itself, "
        "and no rival. Rivals stand at the same position of different texts."
    )


draft_tree = Schematic(draw_tree_mask, say_tree_mask, (10.5, 4.2), {"node": (0, 5, 3)})
