"""Boxes, arrows and text for schematics, in the course's colours.

Every schematic has its own units; `bare` removes the axes and points y downward, so that rows count
from the top. Text on a box is white or black, whichever is readable.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from minitrain.lab.drawing.colors import INK, Color, ink_on

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.patches import FancyBboxPatch

Point = tuple[float, float]

DASHED = {"edgecolor": "#c4c4c4", "linestyle": "--"}  # of an empty box
IDLE = {"facecolor": "white", "edgecolor": "#c4c4c4", "hatch": "////", "linewidth": 0}


def bare(ax: Axes, width: float, height: float) -> None:
    """x from 0 to `width`, y from 0 at the top to `height`; no ticks, no frame."""
    ax.set_xlim(0, width)
    ax.set_ylim(height, 0)
    ax.axis("off")


def rectangle(
    x: float, y: float, width: float, height: float, color: Color, **style: Any
) -> FancyBboxPatch:
    """A box with rounded corners, to be added to axes."""
    from matplotlib.patches import FancyBboxPatch

    shape = "round,pad=0,rounding_size=0.04"
    style = {"linewidth": 1.0, "edgecolor": "none", **style}
    return FancyBboxPatch((x, y), width, height, boxstyle=shape, facecolor=color, **style)


def box(
    ax: Axes, x: float, y: float, width: float, height: float, color: Color = "white",
    words: str = "", size: float = 9, **style: Any,
) -> None:  # fmt: skip
    """A box with centred text."""
    ax.add_patch(rectangle(x, y, width, height, color, **style))
    if words:
        write(ax, x + width / 2, y + height / 2, words, size, color=ink_on(color))


def hatched(ax: Axes, x: float, y: float, width: float, height: float) -> None:
    """A box of idle time."""
    box(ax, x, y, width, height, "white", linewidth=0, edgecolor=IDLE["edgecolor"], hatch="////")


def write(ax: Axes, x: float, y: float, words: str, size: float = 9, **style: Any) -> None:
    """Text at a point; `ha` and `va` as in matplotlib."""
    ax.text(x, y, words, fontsize=size, **{"ha": "center", "va": "center", "color": INK, **style})


def arrow(ax: Axes, start: Point, end: Point, color: Color = INK, bend: float = 0.0) -> None:
    """An arrow between two points; `bend`: its curvature, as a share of its length."""
    style = {"arrowstyle": "-|>", "color": color, "linewidth": 1.6, "shrinkA": 1, "shrinkB": 1}
    if bend:
        style["connectionstyle"] = f"arc3,rad={bend}"
    ax.annotate("", xytext=start, xy=end, arrowprops=style)
