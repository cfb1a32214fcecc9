"""Microbatches whose gradients add up: an all-reduce after each, or one after the last."""

from __future__ import annotations

from typing import TYPE_CHECKING

from minitrain.lab.drawing.display import BLUE, ORANGE
from minitrain.lab.drawing.shapes import bare, box, say
from minitrain.lab.ideas.schematic import Schematic

if TYPE_CHECKING:
    from matplotlib.axes import Axes

LEFT, SCALE, HIGH = 2.6, 10.0, 0.5
PASS, MESSAGE = 1.0, 0.8  # a microbatch's forward and backward, an all-reduce of all gradients


def units(microbatches: int, messages: int) -> float:
    """How long the step takes, in units of a microbatch's forward and backward."""
    return microbatches * PASS + messages * MESSAGE


def draw_accumulation(ax: Axes, microbatches: int) -> None:
    bare(ax, LEFT + SCALE + 1.6, 2.3)
    scale = SCALE / units(microbatches, microbatches)
    for y, label, every in ((0.2, "send after each", True), (1.2, "send after the last", False)):
        say(ax, LEFT - 0.2, y + HIGH / 2, label, ha="right")
        x, sent = LEFT, 0
        for number in range(1, microbatches + 1):
            box(ax, x, y, scale * PASS - 0.03, HIGH, BLUE, str(number))
            x += scale * PASS
            if every or number == microbatches:
                box(ax, x, y, scale * MESSAGE - 0.03, HIGH, ORANGE)
                x, sent = x + scale * MESSAGE, sent + 1
        words = f"sent {sent} ×\ntakes {units(microbatches, sent):.1f}"
        say(ax, x + 0.12, y + HIGH / 2, words, ha="left", fontweight="bold")
    for color, x, words in (
        (BLUE, 0.0, f"forward and backward of a microbatch: {PASS:g}"),
        (ORANGE, 5.6, f"all-reduce of all gradients: {MESSAGE:g}"),
    ):
        box(ax, LEFT + x, 1.95, 0.3, 0.22, color)
        say(ax, LEFT + x + 0.45, 2.06, words, ha="left")


def say_accumulation(microbatches: int) -> str:
    each, once = units(microbatches, microbatches), units(microbatches, 1)
    return (
        f"{microbatches} microbatches, and the gradients sent {microbatches} times "
        f"or once. Sent after each microbatch the step takes {each:.1f} units of a microbatch's "
        f"work, sent after the last {once:.1f}: the gradients have added up in between, and one "
        "all-reduce averages the sum."
    )


accumulation = Schematic(
    draw_accumulation, say_accumulation, (9.5, 2.1), {"microbatches": (2, 8, 4)}
)
