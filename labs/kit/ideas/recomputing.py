"""What is held for backward over a step's time, kept or computed again.

Every layer saves four units, of which its input is one. Kept, they pile up until backward takes
them away layer by layer; repeated, only inputs pile up, and each backward makes its own layer's
other three once more before it uses them (Chen et al. 2016).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from minitrain.lab.drawing.display import BLUE, GREEN, ORANGE
from minitrain.lab.drawing.shapes import arrow, bare, box, say
from minitrain.lab.ideas.schematic import Schematic

if TYPE_CHECKING:
    from matplotlib.axes import Axes

LAYERS, SAVED, INPUT = 6, 4, 1
KEPT, AGAIN = "all tensors", "inputs only"
WORK = {"forward": BLUE, "again": ORANGE, "backward": GREEN}
LEFT, FLOOR, WIDE, UNIT = 1.2, 3.9, 0.5, 0.135


class Moment(NamedTuple):
    """One layer's run: which work, which layer, and the units held while it lasts."""

    work: str
    layer: int
    held: int


def moments(keep: str) -> list[Moment]:
    """A step, from the first layer's forward to the first layer's backward."""
    each = SAVED if keep == KEPT else INPUT
    found = [Moment("forward", layer, each * (layer + 1)) for layer in range(LAYERS)]
    for layer in reversed(range(LAYERS)):
        held = each * layer + SAVED
        again = [] if keep == KEPT else [Moment("again", layer, held)]
        found += [*again, Moment("backward", layer, held)]
    return found


def draw_recomputation(ax: Axes, keep: str) -> None:
    bare(ax, LEFT + WIDE * 3 * LAYERS + 0.3, FLOOR + 0.9)
    say(ax, LEFT - 0.15, FLOOR - UNIT * SAVED * LAYERS / 2, "units\nheld", ha="right")
    say(ax, LEFT - 0.15, FLOOR + 0.2, "layer", ha="right")
    if keep == AGAIN:
        height = FLOOR - UNIT * SAVED * LAYERS
        ax.plot([LEFT, LEFT + WIDE * 3 * LAYERS], [height] * 2, "--", color=BLUE, linewidth=1.2)
        words = f"{SAVED * LAYERS} units, if all is kept"
        say(ax, LEFT + WIDE * 3 * LAYERS, height + 0.2, words, ha="right")
    for place, (work, layer, held) in enumerate(moments(keep)):
        x = LEFT + WIDE * place
        box(ax, x, FLOOR - UNIT * held, WIDE - 0.06, UNIT * held, WORK[work])
        say(ax, x + WIDE / 2 - 0.03, FLOOR - UNIT * held - 0.16, str(held))
        say(ax, x + WIDE / 2 - 0.03, FLOOR + 0.2, str(layer))
    arrow(ax, (LEFT, FLOOR + 0.45), (LEFT + WIDE * 3 * LAYERS, FLOOR + 0.45))
    legend = "time    blue: forward    orange: the same forward, again    green: backward"
    legend += f"    a layer saves {SAVED} units, {INPUT} of them its input"
    say(ax, LEFT, FLOOR + 0.72, legend, 8.5, ha="left")


def say_recomputation(keep: str) -> str:
    peak = max(moment.held for moment in moments(keep))
    forwards = LAYERS if keep == KEPT else 2 * LAYERS
    how = "rises with every forward and falls with every backward"
    if keep == AGAIN:
        how = "rises by one a forward; each layer is repeated just before its own backward"
    return (
        f"Forward keeps {keep}: at most {peak} units held, {forwards} forwards run. "
        f"There are {LAYERS} layers. Each saves {SAVED} units, {INPUT} of them its input. "
        f"What is held {how}."
    )


recomputation = Schematic(
    draw_recomputation, say_recomputation, (9.5, 3.6), {"keep": ([KEPT, AGAIN], AGAIN)}
)
