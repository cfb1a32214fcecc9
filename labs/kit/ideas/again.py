"""What waits for backward in a frozen layer of four bits: its weight in floats, or nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

from minitrain.lab.drawing.display import BLUE, GREEN, ORANGE
from minitrain.lab.drawing.shapes import PALE, arrow, bare, box, say
from minitrain.lab.ideas.schematic import Schematic

if TYPE_CHECKING:
    from matplotlib.axes import Axes

LAYERS = 3
LEFT, STEP, WIDE, HIGH = 0.9, 1.75, 1.45, 0.55
WAYS = ("autograd keeps it", "made again")
BITS = {"codes": 4.127, "floats": 32.0}  # float32, as the lab computes


def held(way: str) -> float:
    """Bits a weight, of all layers, at the turn from forward to backward."""
    return BITS["codes"] + (BITS["floats"] if way == WAYS[0] else 0)


def draw_made_again(ax: Axes, way: str) -> None:
    bare(ax, LEFT + 2 * LAYERS * STEP + 0.6, 4.1)
    keeps = way == WAYS[0]
    for turn in range(2 * LAYERS):
        x, backward = LEFT + STEP * turn, turn >= LAYERS
        layer = 2 * LAYERS - 1 - turn if backward else turn
        gap = 0.25 if backward else 0.0
        words = f"dx = dy Ŵ{'₁₂₃'[layer]}" if backward else f"y = x Ŵ{'₁₂₃'[layer]}ᵀ"
        box(ax, x + gap, 0.6, WIDE, HIGH, GREEN if backward else BLUE, words, 9)
        made = not (backward and keeps)
        middle = x + gap + WIDE / 2
        arrow(ax, (middle, 1.53), (middle, 1.17))
        if made:
            arrow(ax, (middle, 2.68), (middle, 2.12))
        floats = "Ŵ in floats" if made else "still there"
        color = ORANGE if made or keeps else PALE
        box(ax, x + gap, 1.55, WIDE, HIGH, color, floats, 9)
        box(ax, x + gap, 2.7, WIDE, HIGH, PALE, "codes, scales", 9)
    say(ax, LEFT, 0.3, "forward", 9, ha="left", fontweight="bold")
    say(ax, LEFT + STEP * LAYERS + 0.25, 0.3, "backward", 9, ha="left", fontweight="bold")
    lives = "until its backward" if keeps else "for one product"
    legend = f"orange: floats of {BITS['floats']:g} bits, each lives {lives}    "
    say(ax, LEFT, 3.75, legend + f"grey: {BITS['codes']} bits, always there", 9, ha="left")


def say_made_again(way: str) -> str:
    count = "every layer's" if way == WAYS[0] else "no layer's"
    again = "once" if way == WAYS[0] else "twice"
    return (
        f"Between forward and backward {count} weight waits in floats: {held(way):.1f} bits a "
        f"weight are held. Each Ŵ is made {again} from its codes. Forward multiplies by its "
        "transpose, backward by itself; a frozen weight needs no gradient, and x is not kept."
    )


made_again = Schematic(draw_made_again, say_made_again, (9.8, 3.4), {"way": (list(WAYS), WAYS[0])})
