"""Schematics of lab e02, data parallel."""

from __future__ import annotations

from itertools import pairwise

from matplotlib.axes import Axes

from minitrain.lab.drawing.colors import BLUE, COLORS, INK, ORANGE, PALE, lighter
from minitrain.lab.drawing.shapes import arrow, bare, box, write
from minitrain.lab.ideas.schematic import schematic
from minitrain.words import plural

PLACES = (
    "its own batch", "same weights", "its own gradient", "average,\nby all-reduce", "new weights",
)  # fmt: skip


def words_of(row: int, rank: int, ranks: int) -> str:
    """The words in a box."""
    total = " + ".join(f"g{r}" for r in range(ranks))
    return (f"batch {rank}", "W", f"g{rank}", f"({total}) / {ranks}", "W − η · average")[row]


def alt_replicas(ranks: int) -> str:
    return f"""One step on {ranks} ranks: different batches, the same weights before and after. Each
    rank sends its own batch through the same weights W and gets its own gradient; the gradients are
    averaged over the {ranks} ranks by an all-reduce, the only thing that is sent; each rank then
    takes the same optimizer step, so that the weights stay equal."""


@schematic(alt_replicas, 9.5, 3.7, ranks=(2, 4, 4))
def replicas(ax: Axes, ranks: int) -> None:
    """Data parallelism: every rank has the whole model and its own data; only gradients are
    shared."""
    left, across, wide, high, step = 2.3, 2.5, 2.1, 0.5, 0.85
    bare(ax, left + across * 4, 0.5 + step * len(PLACES))
    for row, label in enumerate(PLACES):
        y = 0.45 + step * row
        write(ax, left - 0.25, y + high / 2, label, ha="right")
        for rank in range(ranks):
            x, middle = left + across * rank, left + across * rank + wide / 2
            own = row in (0, 2)  # rank-specific items have the rank's colour
            color = COLORS[rank] if own else INK if row == 3 else "#dddddd"
            box(ax, x, y, wide, high, color, words_of(row, rank, ranks), 8.5)
            if row + 1 < len(PLACES):
                arrow(ax, (middle, y + high), (middle, y + step))
    for rank in range(ranks):
        write(ax, left + across * rank + wide / 2, 0.2, f"rank {rank}", fontweight="bold")
    y = 0.45 + step * 3 + high / 2
    for rank in range(ranks - 1):
        ends = [(left + across * rank + wide, y), (left + across * (rank + 1), y)]
        arrow(ax, *ends, ORANGE)
        arrow(ax, *reversed(ends), ORANGE)


LAYERS = 8
LATENCY, EACH = 0.6, 0.7  # of a message: fixed, and per layer


def messages(layers_in_bucket: int) -> list[tuple[float, float, int]]:
    """(start, end, layers) of each bucket's all-reduce, in units of a layer's backward."""
    found: list[tuple[float, float, int]] = []
    for first in range(0, LAYERS, layers_in_bucket):
        count = min(layers_in_bucket, LAYERS - first)
        start = max(first + count, found[-1][1] if found else 0.0)
        found.append((start, start + LATENCY + EACH * count, count))
    return found


def alt_buckets(layers_in_bucket: int) -> str:
    sent = messages(layers_in_bucket)
    exposed = sent[-1][1] - LAYERS
    return f"""{plural(layers_in_bucket, "layer")} a bucket: {plural(len(sent), "all-reduce")},
    exposed as long as {exposed:.2g} layers' backward. There are {LAYERS} layers. The first leaves
    after {plural(layers_in_bucket, "layer")} of backward, the last arrives at {sent[-1][1]:.1f};
    backward itself takes {LAYERS}. Small buckets pay the latency often; one large bucket begins
    when nothing is left to hide behind."""


@schematic(alt_buckets, 9.5, 2.9, layers_in_bucket=([1, 2, 4, 8], 2))
def buckets(ax: Axes, layers_in_bucket: int) -> None:
    """Gradients of a backward pass, from the last layer to the first, sent in buckets.

    A bucket is sent when its last gradient is ready and the previous bucket has arrived.
    Communication after the end of the backward pass is exposed. In units of one layer's backward: a
    message costs 0.6 + 0.7 per layer.
    """
    left, backward, network = 1.9, 0.35, 1.5  # where the lanes are
    sent = messages(layers_in_bucket)
    bare(ax, left + max(messages(LAYERS)[-1][1], 14) + 0.3, 2.6)
    write(ax, left - 0.2, backward + 0.25, "backward", ha="right")
    write(ax, left - 0.2, network + 0.25, "all-reduce", ha="right")
    for place in range(LAYERS):
        shade = lighter(BLUE, 0.35 * (place // layers_in_bucket % 2))
        box(ax, left + place, backward, 0.94, 0.5, shade, f"layer {LAYERS - place}", 8)
    for number, (start, end, _) in enumerate(sent):
        ready = left + min(LAYERS, (number + 1) * layers_in_bucket)
        arrow(ax, (ready - 0.3, backward + 0.5), (left + start + 0.3, network))
        hidden = max(0.0, min(end, LAYERS) - start)
        words = f"bucket {number + 1}" if end - start > 1.4 else str(number + 1)
        box(ax, left + start, network, LATENCY, 0.5, "#8a3d00")  # a dark orange
        moved = left + start + LATENCY
        box(ax, moved, network, end - start - LATENCY, 0.5, ORANGE, words, 8.5)
        if hidden < end - start:
            late = max(start, LAYERS)
            box(ax, left + late, network + 0.55, end - late, 0.12, ORANGE)
    ax.plot([left + LAYERS] * 2, [0.15, 2.5], color="#666666", linestyle="--", linewidth=1)
    write(ax, left + LAYERS + 0.1, 2.42, "backward is over: from here on it is exposed (thin bar)",
        8.5, ha="left")  # fmt: skip
    legend = "neighbours of one blue: a bucket    dark orange: its latency"
    write(ax, left, 2.42, legend, 8.5, ha="left")
    for before, after in pairwise(sent):
        if after[0] > before[1]:
            x = left + before[1]
            box(ax, x, network + 0.2, after[0] - before[1], 0.1, PALE)


PASS, MESSAGE = 1.0, 0.8  # a microbatch's forward and backward, an all-reduce of all gradients


def units(microbatches: int, messages: int) -> float:
    """The step's length, in units of a microbatch's forward and backward."""
    return microbatches * PASS + messages * MESSAGE


def alt_accumulation(microbatches: int) -> str:
    each, once = units(microbatches, microbatches), units(microbatches, 1)
    return f"""{microbatches} microbatches, and the gradients sent {microbatches} times or once.
    Sent after each microbatch the step takes {each:.1f} units of a microbatch's work, sent after
    the last {once:.1f}: the gradients have added up in between, and one all-reduce averages the
    sum."""


@schematic(alt_accumulation, 9.5, 2.1, microbatches=(2, 8, 4))
def accumulation(ax: Axes, microbatches: int) -> None:
    """Gradient accumulation: an all-reduce after each microbatch, or one after the last."""
    left, per_unit, high = 2.6, 10.0, 0.5
    bare(ax, left + per_unit + 1.6, 2.3)
    scale = per_unit / units(microbatches, microbatches)
    for y, label, every in ((0.2, "send after each", True), (1.2, "send after the last", False)):
        write(ax, left - 0.2, y + high / 2, label, ha="right")
        x, sent = left, 0
        for number in range(1, microbatches + 1):
            box(ax, x, y, scale * PASS - 0.03, high, BLUE, str(number))
            x += scale * PASS
            if every or number == microbatches:
                box(ax, x, y, scale * MESSAGE - 0.03, high, ORANGE)
                x, sent = x + scale * MESSAGE, sent + 1
        words = f"sent {sent} ×\ntakes {units(microbatches, sent):.1f}"
        write(ax, x + 0.12, y + high / 2, words, ha="left", fontweight="bold")
    for color, x, words in (
        (BLUE, 0.0, f"forward and backward of a microbatch: {PASS:g}"),
        (ORANGE, 5.6, f"all-reduce of all gradients: {MESSAGE:g}"),
    ):
        box(ax, left + x, 1.95, 0.3, 0.22, color)
        write(ax, left + x + 0.45, 2.06, words, ha="left")
