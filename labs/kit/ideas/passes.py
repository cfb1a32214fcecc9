"""The matmuls of a training step: forward, twice as many backward, and what recomputation repeats.

FLOPs of one token in Llama 2 70B at 4,096 tokens; the boxes are not to scale, the head is small.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from minitrain.lab.drawing.display import BLUE, GREEN, ORANGE
from minitrain.lab.drawing.figures import lighter
from minitrain.lab.drawing.shapes import bare, box, say
from minitrain.lab.ideas.schematic import Schematic

if TYPE_CHECKING:
    from matplotlib.axes import Axes

LAYERS, WIDTH, LENGTH, VOCABULARY = 80, 8192, 4096, 32000
PARTS = {  # GFLOP of one token's forward, and the colour
    "matrices of the layers": (2 * 68_451_041_280 / 1e9, BLUE),
    "attention's scores": (4 * LAYERS * WIDTH * LENGTH / 1e9, ORANGE),
    "head": (2 * WIDTH * VOCABULARY / 1e9, GREEN),
}
ROWS = ("forward", "backward, for the inputs", "backward, for the weights*", "forward again")
LEFT, WIDTHS, HIGH = 3.5, (4.6, 2.6, 1.6), 0.75


def repeated(recompute: str) -> list[str]:
    """The parts of forward that run a second time."""
    again = {"none": [], "selective": ["attention's scores"], "full": list(PARTS)[:2]}
    return again[recompute]


def hardware(recompute: str) -> float:
    """GFLOP a token, with what is repeated."""
    again = sum(PARTS[name][0] for name in repeated(recompute))
    return 3 * sum(size for size, _ in PARTS.values()) + again


def draw_passes(ax: Axes, recompute: str) -> None:
    bare(ax, LEFT + sum(WIDTHS) + 0.2, HIGH * len(ROWS) + 1.0)
    for row, title in enumerate(ROWS):
        y, x = 0.15 + HIGH * row, LEFT
        say(ax, LEFT - 0.2, y + 0.28, title, ha="right")
        for (name, (size, color)), wide in zip(PARTS.items(), WIDTHS):
            is_run = row < 3 or name in repeated(recompute)
            words = f"{name}: {size:.1f}"
            style = {} if is_run else {"edgecolor": "#c4c4c4", "linestyle": "--"}
            shade = color if row < 3 else lighter(color, 0.6)
            words = words if is_run else "not again"
            box(ax, x, y, wide - 0.08, 0.56, shade if is_run else "white", words, 8.5, **style)
            x += wide
    legend = f"GFLOP of one token in a text of {LENGTH:,}, Llama 2 70B; widths are not to scale"
    say(ax, 0.1, HIGH * len(ROWS) + 0.4, legend, ha="left")
    legend = "* scores have no weights: here stand the gradients of keys and values instead"
    say(ax, 0.1, HIGH * len(ROWS) + 0.78, legend, ha="left")


def say_passes(recompute: str) -> str:
    model, total = hardware("none"), hardware(recompute)
    what = " and ".join(repeated(recompute)) or "nothing"
    title = f"Training on one token: {model:.0f} GFLOP, three forwards of {model / 3:.0f}"
    if recompute != "none":
        title = (
            f"The model's {model:.0f} GFLOP a token are three forwards; with {recompute} "
            f"recomputation the hardware does {total:.0f}"
        )
    return (
        f"{title}. Rows of forward, of two backward passes with as many matmuls "
        f"each, and of what runs forward again: {what}. Each row has the layers' matrices, "
        "attention's scores and the head."
    )


step_passes = Schematic(
    draw_passes, say_passes, (9.5, 3.0), {"recompute": (["none", "selective", "full"], "full")}
)
