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
PLACES = {"q": (2.2, 0.5), "k": (2.2, 1.5), "v": (2.2, 2.5), "attention": (3.9, 1.5),
          "o": (5.6, 1.5), "gate": (7.6, 1.0), "up": (7.6, 2.0), "down": (9.3, 1.5)}  # fmt: skip
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
    bare(ax, 12.4, 4.0)
    say(ax, 0.5, 1.9, "x", 12, fontweight="bold")
    arrow(ax, (0.8, 1.9), (2.1, 1.9))
    for name, (x, y) in PLACES.items():
        touched = name in TOUCHED[method]
        wide = 1.3
        box(ax, x, y, wide, 0.75, PALE, name, 9, edgecolor="#999999")
        if not touched:
            continue
        hue = lighter(ORANGE, 0.2)
        if method == "Houlsby":
            box(ax, x + wide + 0.06, y + 0.12, 0.24, 0.5, hue)
        elif method == "prefix":
            box(ax, x - 0.3, y - 0.1, 0.24, 0.95, hue)
        else:
            box(ax, x, y + 0.79, wide, 0.14, hue)
    arrow(ax, (11.0, 1.9), (11.8, 1.9))
    say(ax, 12.1, 1.9, "y", 12, fontweight="bold")
    say(ax, 0.3, 3.8, f"orange: {DOES[method]}; grey: frozen", 9, ha="left")


def say_adapter_places(method: str) -> str:
    name, verb = f"{method[0].upper()}{method[1:]}", "keeps" if method == "prefix" else "trains"
    return (
        f"{name} {verb} {trained(method):,} numbers beside the {frozen():,} in a block's matrices. "
        f"It is {DOES[method]}; everything else is frozen."
    )


adapter_places = Schematic(
    draw_adapter_places, say_adapter_places, (9.5, 3.2), {"method": (list(TOUCHED), "LoRA")}
)
