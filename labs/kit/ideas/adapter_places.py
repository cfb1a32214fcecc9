"""One block of a Llama, and where each method of fine-tuning puts what it trains."""

from __future__ import annotations

from typing import TYPE_CHECKING

from minitrain.lab.drawing.display import ORANGE
from minitrain.lab.drawing.figures import lighter
from minitrain.lab.drawing.shapes import PALE, arrow, bare, box, say
from minitrain.lab.ideas.schematic import Schematic

if TYPE_CHECKING:
    from matplotlib.axes import Axes

D, KC, F, M, N, R = 64, 32, 128, 16, 16, 8  # as in lab e06
LAYERS = {"q": (D, D), "k": (D, KC), "v": (D, KC), "o": (D, D),
          "gate": (D, F), "up": (D, F), "down": (F, D)}  # fmt: skip
WIDE, HIGH = 1.25, 0.75  # of a box
PLACES = {"q": (1.55, 0.5), "k": (1.55, 1.5), "v": (1.55, 2.5), "attention": (3.65, 1.5),
          "o": (5.45, 1.5), "gate": (7.65, 1.0), "up": (7.65, 2.0),
          "down": (9.45, 1.5)}  # fmt: skip
FLOW = ((0.65, 1.45), (2.9, 3.3), (4.95, 5.4), (7.1, 7.6), (8.95, 9.4), (11.1, 11.75))  # arrows
TOUCHED = {
    "LoRA": tuple(LAYERS),
    "Houlsby": ("o", "down"),
    "(IA)³": ("k", "v", "down"),
    "BitFit": tuple(LAYERS),
    "prefix": ("attention",),
}
DOES = {
    "LoRA": f"two thin matrices of rank {R} beside each layer",
    "Houlsby": "a bottleneck after the last layer of each sublayer",
    "(IA)³": "a factor for each key, value, and input of down",
    "BitFit": "a bias for each output of each layer",
    "prefix": "keys and values before those of the text",
}


def trained(method: str) -> int:
    """Numbers in one block."""
    sizes = [LAYERS[name] for name in TOUCHED[method] if name in LAYERS]
    return {
        "LoRA": sum(R * (i + o) for i, o in sizes),
        "Houlsby": len(sizes) * (2 * M * D + M + D),
        "(IA)³": 2 * KC + F,
        "BitFit": sum(o for _, o in sizes),
        "prefix": N * 2 * KC,
    }[method]


def frozen() -> int:
    """Numbers in the block's matrices."""
    return sum(i * o for i, o in LAYERS.values())


def draw_adapter_places(ax: Axes, method: str) -> None:
    bare(ax, 12.4, 4.2)
    middle = PLACES["k"][1] + HIGH / 2
    for start, end in FLOW:
        arrow(ax, (start, middle), (end, middle))
    say(ax, 0.4, middle, "x", 12, fontweight="bold")
    say(ax, 12.0, middle, "y", 12, fontweight="bold")
    hue = lighter(ORANGE, 0.2)
    for name, (x, y) in PLACES.items():
        color = PALE if name in LAYERS else "white"
        box(ax, x, y, WIDE, HIGH, color, name, 9, edgecolor="#999999")
        if name not in TOUCHED[method]:
            continue
        if method == "Houlsby":
            box(ax, x + WIDE + 0.06, y + 0.12, 0.24, 0.5, hue)
        elif method == "prefix":
            box(ax, x - 0.3, y - 0.1, 0.24, 0.95, hue)
        else:
            box(ax, x, y + 0.79, WIDE, 0.14, hue)
    say(ax, 0.3, 3.7, f"orange: {DOES[method]}    grey: frozen layers", 9, ha="left")
    say(ax, 0.3, 4.05, "white: no weights    norms and residual sums are left out", 9, ha="left")


def say_adapter_places(method: str) -> str:
    name, verb = f"{method[0].upper()}{method[1:]}", "keeps" if method == "prefix" else "trains"
    return (
        f"{name} {verb} {trained(method):,} numbers beside the {frozen():,} in a block's matrices. "
        f"It is {DOES[method]}; everything else is frozen."
    )


adapter_places = Schematic(
    draw_adapter_places, say_adapter_places, (9.5, 3.4), {"method": (list(TOUCHED), "LoRA")}
)
