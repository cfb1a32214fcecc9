"""The ranks of a mesh in their nodes, each with its part of model and batch.

    show.draw_mesh(Mesh(pp=2, dp=2, tp=2), ranks_per_node=4, axis="tp", rank=5)

A box is a rank, a stripe a part that it holds; stripes of the same colour and shade hold the same
part. `rank`'s group along `axis` is highlighted, joined by its communication ring: dashed where a
message leaves the node. Arrows run in a lane above each row of boxes, clear of text.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from minitrain.errors import unknown_name
from minitrain.lab.drawing.colors import BLUE, GREEN, INK, ORANGE, PINK, ink_on, lighter
from minitrain.lab.drawing.figures import drawing
from minitrain.lab.drawing.shapes import Point, rectangle
from minitrain.parallel.mesh import Mesh
from minitrain.words import plural

if TYPE_CHECKING:
    from matplotlib.axes import Axes

STRIPES = {  # item: the mesh axes that shard it, in order, and its colour
    "layers": (("pp",), BLUE),
    "heads": (("tp",), ORANGE),
    "experts": (("ep",), PINK),
    "rows": (("dp", "ep"), GREEN),
    "tokens": (("cp",), "#7A5C00"),
}
HOLDING = {"layers": 8, "heads": 8, "experts": 8, "rows": 8, "tokens": 64}
GAP = 0.18  # between nodes, where a box is 1 wide
LANE = 0.26  # above each row of boxes, for its arrows
READABLE = 32  # boxes, beyond which they have no text
LARGEST, SMALLEST = 9.0, 5.5  # points of the words in a stripe


def draw_mesh(
    mesh: Mesh,
    *,
    ranks_per_node: int = 8,
    axis: str = "",
    rank: int = 0,
    holding: Mapping[str, int] = HOLDING,
    title: str = "",
    alt: str = "",
    caption: str = "",
    ax: Axes | None = None,
) -> None:
    """Displays it; `holding`: total numbers of layers, heads, experts, rows and tokens."""
    if axis and axis not in mesh.axes:
        raise unknown_name("axis of the mesh", axis, mesh.axes)
    words = summary(mesh, ranks_per_node, axis, rank)
    alt = alt or f"Ranks of a mesh in their nodes. {words}"
    with drawing(ax, alt, caption or words, width=9, height=5) as axes:
        draw(axes, mesh, ranks_per_node, axis, rank, holding, title or repr(mesh))


def summary(mesh: Mesh, ranks_per_node: int, axis: str, rank: int) -> str:
    """ "8 ranks on 2 nodes; …", for the caption and the alt text."""
    size = math.prod(mesh.shape)
    nodes = plural(math.ceil(size / ranks_per_node), "node")
    words = f"{size} ranks on {nodes} of {ranks_per_node}"
    if not axis:
        return f"{words}."
    line = mesh.ranks(axis, rank)
    crossed = len({other // ranks_per_node for other in line})
    where = "inside one node" if crossed == 1 else f"over {crossed} nodes"
    return f"{words}; rank {rank}'s group along {axis}: {', '.join(map(str, line))}, {where}."


def share(count: int, part: int, parts: int) -> range:
    """The part-th of `parts` of 0 … count-1, in a row."""
    return range(part * count // parts, (part + 1) * count // parts)


def held(mesh: Mesh, rank: int, holding: Mapping[str, int]) -> dict[str, tuple[range, int, int]]:
    """A rank's part of all that the mesh splits: {"layers": (range(0, 4), part 0, of 2)}."""
    here, found = mesh.coordinates(rank), {}
    for what, (axes, _) in STRIPES.items():
        part, parts = 0, 1
        for axis in axes:
            if axis in mesh.axes:
                part, parts = part * mesh[axis] + here[axis], parts * mesh[axis]
        if parts > 1:
            found[what] = share(holding[what], part, parts), part, parts
    return found


def draw(
    ax: Axes, mesh: Mesh, per_node: int, axis: str, rank: int,
    holding: Mapping[str, int], title: str,
) -> None:  # fmt: skip
    size = math.prod(mesh.shape)
    places = places_of(size, per_node)
    width = 1 + max(x for x, _ in places)
    height = 1 + max(y for _, y in places)
    ax.set_xlim(-GAP, width + GAP)
    ax.set_ylim(height + GAP, -LANE - 0.2)
    for first in range(0, size, per_node):
        draw_node(ax, first // per_node, places[first : first + per_node])
    line = mesh.ranks(axis, rank) if axis else []
    points = font_of(ax, mesh, holding) if size <= READABLE else 0
    for other, place in enumerate(places):
        draw_rank(ax, mesh, other, place, holding, points, other in line)
    draw_ring(ax, places, line, per_node)
    ax.set_title(title)
    ax.axis("off")


def font_of(ax: Axes, mesh: Mesh, holding: Mapping[str, int]) -> float:
    """The largest font at which every stripe's text fits, in points."""
    stripes = [held(mesh, rank, holding) for rank in range(math.prod(mesh.shape))]
    words = [f"{what} {span(part)}" for own in stripes for what, (part, *_) in own.items()]
    if not words:
        return LARGEST
    inches = ax.get_window_extent().transformed(ax.figure.dpi_scale_trans.inverted())
    across = 72 * inches.width / abs(ax.get_xlim()[1] - ax.get_xlim()[0])  # points of a box
    down = 72 * inches.height / abs(ax.get_ylim()[1] - ax.get_ylim()[0])
    by_width = 0.84 * across / (0.6 * max(map(len, words)))
    by_height = 0.7 * down / max(map(len, stripes)) / 1.25
    return max(SMALLEST, min(LARGEST, by_width, by_height))


def places_of(size: int, per_node: int) -> list[tuple[float, float]]:
    """(x, y) of each rank's box; a node is a block of boxes, nodes side by side in rows."""
    across = min(size, per_node, max(4, math.isqrt(per_node)))
    down = math.ceil(min(size, per_node) / across)
    nodes = math.ceil(size / per_node)
    columns = max(1, min(nodes, round(math.sqrt(1.5 * nodes * down / across))))
    found = []
    for rank in range(size):
        node, inside = divmod(rank, per_node)
        x = (node % columns) * (across + 2 * GAP) + inside % across
        y = (node // columns) * ((1 + LANE) * down + 2 * GAP) + (1 + LANE) * (inside // across)
        found.append((x, y))
    return found


def draw_node(ax: Axes, node: int, places: Sequence[tuple[float, float]]) -> None:
    xs, ys = zip(*places)
    left, top = min(xs) - GAP / 2, min(ys) - LANE
    across, down = max(xs) + 1 + GAP / 2 - left, max(ys) + 1 + GAP / 2 - top
    ax.add_patch(rectangle(left, top, across, down, "#f1f1f1", edgecolor="#888888"))
    ax.text(left, top - 0.03, f"node {node}", fontsize=9, color="#555555", va="bottom")


def draw_rank(
    ax: Axes, mesh: Mesh, rank: int, place: tuple[float, float],
    holding: Mapping[str, int], points: float, chosen: bool,
) -> None:  # fmt: skip
    """points: the font size of a stripe's text, 0 for none."""
    x, y = place
    stripes = held(mesh, rank, holding)
    head = 0.22 if points else 0.04
    depth = (0.92 - head) / max(1, len(stripes))
    edge = {"edgecolor": INK, "linewidth": 2.4} if chosen else {"edgecolor": "#bbbbbb"}
    ax.add_patch(rectangle(x + 0.04, y + 0.04, 0.92, 0.92, "white", **edge))
    if points:
        style = {"ha": "center", "va": "center", "fontweight": "bold"}
        ax.text(x + 0.5, y + 0.04 + head / 2, str(rank), fontsize=points + 1, **style)
    for i, (what, (part, number, parts)) in enumerate(stripes.items()):
        top = y + 0.04 + head + i * depth
        color = lighter(STRIPES[what][1], 0.8 * number / max(1, parts - 1))
        ax.add_patch(rectangle(x + 0.07, top, 0.86, depth - 0.03, color))
        if points:
            style = {"ha": "center", "va": "center", "fontsize": points, "color": ink_on(color)}
            ax.text(x + 0.5, top + (depth - 0.03) / 2, f"{what} {span(part)}", **style)


def draw_ring(ax: Axes, places: Sequence[Point], line: Sequence[int], per_node: int) -> None:
    """Arrows from each rank of the group to its next; one between nodes is dashed and orange."""
    from matplotlib.patches import FancyArrowPatch
    from matplotlib.path import Path

    if len(line) < 2:
        return
    for here, after in zip(line, [*line[1:], *line[:1]]):
        crosses = here // per_node != after // per_node
        way = Path(path_of(places[here], places[after]), [Path.MOVETO, *[Path.CURVE4] * 3])
        style = {"color": ORANGE if crosses else INK, "linestyle": "--" if crosses else "-"}
        style |= {"arrowstyle": "-|>", "mutation_scale": 9, "linewidth": 1.6}
        ax.add_patch(FancyArrowPatch(path=way, **style))


def path_of(here: Point, after: Point) -> list[Point]:
    """Start, two control points, and end, between the edges of two boxes: within a row an arc
    through the lane above, the return arc higher; else straight, side by side."""
    (x, y), (to_x, to_y) = here, after
    top, low = 0.02, 0.98  # the edges of a box
    if y == to_y:
        start, end = (x + 0.58, y + top), (to_x + 0.42, y + top)
        over = y + top - (0.15 if to_x > x else 0.26)
        return [start, (start[0], over), (end[0], over), end]
    side = 0.58 if to_y > y else 0.42
    here_side, after_side = (side, side) if x == to_x else (0.58, 0.42)
    leave, arrive = (low, top) if to_y > y else (top, low)
    start, end = (x + here_side, y + leave), (to_x + after_side, to_y + arrive)
    between = [(a + (b - a) / 3, a + 2 * (b - a) / 3) for a, b in zip(start, end)]
    return [start, *zip(*between), end]


def span(part: range) -> str:
    if not part:
        return "none"
    return str(part[0]) if len(part) == 1 else f"{part[0]}–{part[-1]}"
