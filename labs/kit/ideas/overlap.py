"""Gradients of a backward pass, from the last layer to the first, put in buckets that travel.

A bucket leaves when its last gradient is there and the bucket before it has arrived. What travels
after the backward pass is over is exposed. In units of one layer's backward: a message costs
0.6 + 0.7 a layer.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

from minitrain.lab.drawing.display import BLUE, ORANGE
from minitrain.lab.drawing.figures import lighter
from minitrain.lab.drawing.shapes import PALE, arrow, bare, box, say
from minitrain.lab.ideas.schematic import Schematic
from minitrain.words import plural

if TYPE_CHECKING:
    from matplotlib.axes import Axes

LAYERS = 8
DARK = "#8a3d00"  # of ORANGE
LATENCY, EACH = 0.6, 0.7  # of a message: whatever its length, and a layer in it
LEFT, BACKWARD, MESSAGES = 1.9, 0.35, 1.5  # where the lanes are


def messages(layers_in_bucket: int) -> list[tuple[float, float, int]]:
    """(start, end, layers) of each bucket's all-reduce, in units of a layer's backward."""
    found: list[tuple[float, float, int]] = []
    for first in range(0, LAYERS, layers_in_bucket):
        count = min(layers_in_bucket, LAYERS - first)
        start = max(first + count, found[-1][1] if found else 0.0)
        found.append((start, start + LATENCY + EACH * count, count))
    return found


def draw_buckets(ax: Axes, layers_in_bucket: int) -> None:
    sent = messages(layers_in_bucket)
    longest = messages(LAYERS)[-1][1]
    bare(ax, LEFT + max(longest, 14) + 0.3, 2.6)
    say(ax, LEFT - 0.2, BACKWARD + 0.25, "backward", ha="right")
    say(ax, LEFT - 0.2, MESSAGES + 0.25, "all-reduce", ha="right")
    for place in range(LAYERS):
        shade = lighter(BLUE, 0.35 * (place // layers_in_bucket % 2))
        box(ax, LEFT + place, BACKWARD, 0.94, 0.5, shade, f"layer {LAYERS - place}", 8)
    for number, (start, end, _) in enumerate(sent):
        ready = LEFT + min(LAYERS, (number + 1) * layers_in_bucket)
        arrow(ax, (ready - 0.3, BACKWARD + 0.5), (LEFT + start + 0.3, MESSAGES))
        hidden = max(0.0, min(end, LAYERS) - start)
        words = f"bucket {number + 1}" if end - start > 1.4 else str(number + 1)
        box(ax, LEFT + start, MESSAGES, LATENCY, 0.5, DARK)
        moved = LEFT + start + LATENCY
        box(ax, moved, MESSAGES, end - start - LATENCY, 0.5, ORANGE, words, 8.5)
        if hidden < end - start:
            box(
                ax,
                LEFT + max(start, LAYERS),
                MESSAGES + 0.55,
                end - max(start, LAYERS),
                0.12,
                ORANGE,
            )
    ax.plot([LEFT + LAYERS] * 2, [0.15, 2.5], color="#666666", linestyle="--", linewidth=1)
    say(ax, LEFT + LAYERS + 0.1, 2.42, "backward is over: from here on it is exposed (thin bar)",
        8.5, ha="left")  # fmt: skip
    legend = "neighbours of one blue: a bucket    dark orange: its latency"
    say(ax, LEFT, 2.42, legend, 8.5, ha="left")
    for before, after in pairwise(sent):
        if after[0] > before[1]:
            x = LEFT + before[1]
            box(ax, x, MESSAGES + 0.2, after[0] - before[1], 0.1, PALE)


def say_buckets(layers_in_bucket: int) -> str:
    sent = messages(layers_in_bucket)
    exposed = sent[-1][1] - LAYERS
    count = len(sent)
    return (
        f"{plural(layers_in_bucket, 'layer')} a bucket: {plural(count, 'all-reduce')}, exposed as "
        f"long as {exposed:.2g} layers' backward. There are {LAYERS} layers. The first "
        f"leaves after {plural(layers_in_bucket, 'layer')} of backward, the last arrives at "
        f"{sent[-1][1]:.1f}; backward itself takes {LAYERS}. Small buckets "
        "pay the latency often; one large bucket begins when nothing is left to hide behind."
    )


buckets = Schematic(draw_buckets, say_buckets, (9.5, 2.9), {"layers_in_bucket": ([1, 2, 4, 8], 2)})
