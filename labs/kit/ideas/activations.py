"""Checkpointing: which activations are kept, which are computed again, and what that costs.

A segment keeps its input only; its backward runs it forward again and then holds its layers'
activations (Chen et al. 2016). One unit is what one layer saves: its input, so that a segment's
own input is the first of its layers' units.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from minitrain.lab.drawing.display import BLUE, GREEN, ORANGE
from minitrain.lab.drawing.figures import lighter
from minitrain.lab.drawing.shapes import PALE, bare, box, say
from minitrain.lab.ideas.schematic import Schematic
from minitrain.words import plural

if TYPE_CHECKING:
    from matplotlib.axes import Axes

LAYERS = 16
LEFT, WIDE = 2.7, 0.62


def peak(segments: int) -> int:
    """Units held at once at most: the inputs of other segments, and one segment's own layers."""
    return LAYERS if segments == 0 else segments - 1 + LAYERS // segments


def draw_checkpoints(ax: Axes, segments: int) -> None:
    each = LAYERS // segments if segments else 0
    bare(ax, LEFT + WIDE * LAYERS + 0.1, 3.9)
    say(ax, LEFT - 0.15, 0.75, "kept after forward", ha="right")
    say(ax, LEFT - 0.15, 1.75, "while the last\nsegment runs back", ha="right")
    say(ax, LEFT - 0.15, 3.0, f"held at once: {peak(segments)}", ha="right")
    for layer in range(LAYERS):
        x = LEFT + WIDE * layer
        is_input = segments > 0 and layer % each == 0
        is_kept = segments == 0 or is_input
        color = BLUE if segments == 0 else GREEN
        box(ax, x, 0.5, WIDE - 0.08, 0.5, color if is_kept else "white", str(layer),
            edgecolor="#bbbbbb")  # fmt: skip
        is_again = segments > 0 and layer >= LAYERS - each
        now = ORANGE if is_again else color if is_kept else "white"
        box(ax, x, 1.5, WIDE - 0.08, 0.5, now, str(layer), edgecolor="#bbbbbb")
    for number in range(LAYERS):
        color = lighter(BLUE, 0.3) if segments == 0 else GREEN
        color = ORANGE if segments and number >= segments - 1 else color
        if number < peak(segments):
            box(ax, LEFT + WIDE * number, 2.75, WIDE - 0.08, 0.5, color)
        else:
            box(ax, LEFT + WIDE * number, 2.75, WIDE - 0.08, 0.5, PALE)
    kinds = "green: a waiting segment's input    orange: run forward again, now runs back"
    legend = "blue: held" if segments == 0 else f"{kinds}    white: not held"
    say(ax, LEFT, 3.62, f"a box: a layer's input    {legend}", 8.5, ha="left")


def say_checkpoints(segments: int) -> str:
    if segments == 0:
        return (
            f"No checkpoints: all {LAYERS} layers' activations are held, none is computed again. "
            "Every box is filled after the forward pass, and stays so until its backward."
        )
    return (
        f"{plural(segments, 'segment')} of {plural(LAYERS // segments, 'layer')}: at most "
        f"{peak(segments)} held at once, each of the {LAYERS} layers runs forward twice. "
        f"Forward keeps {plural(segments, 'input')}; while the last segment runs back, "
        f"{segments - 1} of other segments and its own {LAYERS // segments}, its input among them."
    )


checkpoints = Schematic(
    draw_checkpoints, say_checkpoints, (9.5, 3.2), {"segments": ([0, 1, 2, 4, 8, 16], 2)}
)
