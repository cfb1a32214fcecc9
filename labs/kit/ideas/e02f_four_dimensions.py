"""Schematics of lab e02f, four dimensions."""

from __future__ import annotations

from matplotlib.axes import Axes
from matplotlib.patches import Arc

from minitrain.lab.drawing.colors import BLUE, INK, ORANGE, PALE, lighter
from minitrain.lab.drawing.shapes import bare, box, rectangle, write
from minitrain.lab.ideas.schematic import schematic
from minitrain.parallel.mesh import Mesh

RANKS, NODE = 8, 4
ORDERS = ["dp pp tp", "dp tp pp", "pp dp tp", "pp tp dp", "tp dp pp", "tp pp dp"]
WIDE, HIGH, GAP, TOP = 1.06, 1.12, 0.5, 1.75
EIGHT, DEEP = {"pp": 2, "dp": 2, "tp": 2}, {"pp": 4, "dp": 1, "tp": 2}
PARAMETERS = {  # the axes that shard it, the stages that hold it, and the mesh
    "an RMSNorm's weight in block 0": ((), (0,), EIGHT),
    "a matrix in block 0": (("tp",), (0,), EIGHT),
    "the tied table": (("tp",), (0, 1), EIGHT),
    "the tied table of four stages": (("tp",), (0, 3), DEEP),
}


def mesh_of(order: str) -> Mesh:
    return Mesh(**dict.fromkeys(order.split(), 2))


def lines(mesh: Mesh, axis: str) -> list[tuple[int, int]]:
    """Every line along the axis, as a pair of ranks."""
    return sorted({(*mesh.ranks(axis, rank),) for rank in range(RANKS)})


def left_of(rank: int) -> float:
    return 0.35 + rank * (WIDE + 0.06) + GAP * (rank // NODE)


def draw_nodes(ax: Axes, y: float, high: float) -> None:
    for first in range(0, RANKS, NODE):
        x, end = left_of(first) - 0.12, left_of(first + NODE - 1) + WIDE + 0.12
        ax.add_patch(rectangle(x, y - 0.12, end - x, high + 0.5, PALE, edgecolor="#bbbbbb"))
        write(ax, (x + end) / 2, y + high + 0.2, f"node {first // NODE}", 8.5)


def join(ax: Axes, one: int, other: int) -> None:
    """An arc above the boxes, as high as it is wide."""
    start, end = left_of(one) + WIDE / 2, left_of(other) + WIDE / 2
    crosses = one // NODE != other // NODE
    style = {"color": ORANGE, "linestyle": "--"} if crosses else {"color": INK}
    height = 0.62 * (end - start)
    ax.add_patch(
        Arc(((start + end) / 2, TOP), end - start, height, theta1=180, theta2=360,
            linewidth=1.8, **style)
    )  # fmt: skip


def alt_mesh_lines(order: str, axis: str) -> str:
    mesh = mesh_of(order)
    pairs = lines(mesh, axis)
    crossing = sum(one // NODE != other // NODE for one, other in pairs)
    where = "all inside a node" if not crossing else f"{crossing} of 4 between nodes"
    shown = ", ".join(f"{one} and {other}" for one, other in pairs)
    return f"""{mesh}, lines along {axis}: {where}. Ranks {shown} differ along {axis} only. The last
    axis varies fastest, so its lines are neighbours; the first one's are half the ranks apart. Two
    nodes hold four ranks each; a line between nodes is dashed."""


@schematic(alt_mesh_lines, 9.5, 3.7, order=(ORDERS, "pp dp tp"), axis=(["dp", "pp", "tp"], "pp"))
def mesh_lines(ax: Axes, order: str, axis: str) -> None:
    """Eight ranks on a mesh, in the order of its axes, and the communicating pairs along one of
    them.

    Two ranks of a line are joined; dashed if on different nodes. `once`, the other half, shows
    which of the eight hold the same elements, so that a norm counts each square once.
    """
    mesh = mesh_of(order)
    bare(ax, left_of(RANKS) - 0.1, TOP + HIGH + 0.8)
    draw_nodes(ax, TOP, HIGH)
    legend = f"joined, of one shade: the ranks of one line along {axis}"
    legend += "    dashed: the line leaves its node"
    write(ax, left_of(0) - 0.12, TOP + HIGH + 0.62, legend, ha="left")
    for number, (one, other) in enumerate(lines(mesh, axis)):
        for rank in (one, other):
            places = "\n".join(f"{a} {i}" for a, i in mesh.coordinates(rank).items())
            shade = lighter(BLUE, 0.25 * number)
            box(ax, left_of(rank), TOP, WIDE, HIGH, shade, f"rank {rank}\n{places}", 8.5)
        join(ax, one, other)


def held(parameter: str, rank: int) -> int | None:
    """The part of the parameter on this rank; None: nothing."""
    split, stages, sizes = PARAMETERS[parameter]
    here = Mesh(**sizes).coordinates(rank)
    if here["pp"] not in stages:
        return None
    return here["tp"] if "tp" in split else 0


def holders(parameter: str) -> int:
    """The number of ranks that hold the same elements."""
    return sum(held(parameter, rank) == 0 for rank in range(RANKS))


def alt_counted_once(parameter: str) -> str:
    count = sum(held(parameter, rank) is not None for rank in range(RANKS))
    sizes = PARAMETERS[parameter][2]
    return f"""On {Mesh(**sizes)}, {parameter}: {holders(parameter)} ranks hold the same elements.
    {count} of 8 ranks hold some of it; one colour is one and the same part. If each adds
    1/{holders(parameter)} of its gradient's squares to the sum over all ranks, every element is
    counted once."""


@schematic(alt_counted_once, 9.5, 2.8, parameter=list(PARAMETERS))
def counted_once(ax: Axes, parameter: str) -> None:
    parts = (BLUE, ORANGE)
    high = 0.95
    bare(ax, left_of(RANKS) - 0.1, high + 1.6)
    mesh = Mesh(**PARAMETERS[parameter][2])
    split = bool(PARAMETERS[parameter][0])
    for rank in range(RANKS):
        part = held(parameter, rank)
        x, here = left_of(rank), mesh.coordinates(rank)
        write(ax, x + WIDE / 2, 0.2, " ".join(f"{a}{i}" for a, i in here.items()), 8.5)
        if part is None:
            box(ax, x, 0.45, WIDE, high, "white", f"rank {rank}\nnothing", 8.5, edgecolor="#bbbbbb")
            continue
        name = f"half {part}" if split else "all of it"
        box(ax, x, 0.45, WIDE, high, parts[part], f"rank {rank}\n{name}", 8.5)
        write(ax, x + WIDE / 2, 0.45 + high + 0.25, f"adds 1/{holders(parameter)}", 8.5)
    share = f"1/{holders(parameter)} of its gradient's squares"
    words = f"each adds {share} to the sum over all ranks: so each element counts once"
    write(ax, left_of(0), 0.45 + high + 0.6, words, ha="left")
    write(ax, left_of(0), 0.45 + high + 0.95, "one colour: one and the same part", ha="left")
