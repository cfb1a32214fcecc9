"""Schematics of lab e01, baseline."""

from __future__ import annotations

import math
from collections import namedtuple

from matplotlib.axes import Axes
from matplotlib.patches import Arc, Circle

from minitrain.lab.drawing.colors import (
    BLUE,
    COLORS,
    GREEN,
    INK,
    ORANGE,
    PALE,
    PINK,
    Color,
    lighter,
)
from minitrain.lab.drawing.figures import finish
from minitrain.lab.drawing.shapes import DASHED, Point, arrow, bare, box, write
from minitrain.lab.ideas.schematic import schematic
from minitrain.words import plural

QUERY, KEY, ANGLE = (1.0, 0.25), (0.85, -0.3), 0.2
ON = 3  # tokens later, for the pale pair


def turned(point: Point, position: int) -> Point:
    """(a, b) -> (a cos - b sin, b cos + a sin)."""
    (a, b), cos, sin = point, math.cos(ANGLE * position), math.sin(ANGLE * position)
    return a * cos - b * sin, b * cos + a * sin


def product(position: int, distance: int) -> float:
    """q·k of a query at `position` and a key `distance` tokens before it."""
    q, k = turned(QUERY, position), turned(KEY, position - distance)
    return q[0] * k[0] + q[1] * k[1]


def _between(ax: Axes, x: float, radius: float, start: Point, end: Point) -> None:
    """The arc from one arrow to another: equally wide for both pairs."""
    ends = [math.degrees(math.atan2(b, a)) for a, b in (start, end)]
    low, high = sorted((ends[0], ends[0] + (ends[1] - ends[0] + 180) % 360 - 180))
    style = {"color": "#666666", "linewidth": 1.2}
    ax.add_patch(Arc((x, 0), 2 * radius, 2 * radius, theta1=low, theta2=high, **style))


def _arrow(ax: Axes, x: float, end: Point, color: Color, name: str) -> None:
    arrow(ax, (x, 0), (x + end[0], end[1]), color)
    far = 1.14 / math.hypot(*end)
    write(ax, x + far * end[0], far * end[1], name, 10)


def alt_turning(position: int, distance: int) -> str:
    return f"""Query at position {position}, key at {position - distance}: q·k is
    {product(position, distance):.3f}, as wherever these two are {distance} apart. On the left a
    pair of numbers of q and of k as arrows; on the right q is turned by {ANGLE * position:.1f}
    radians and k by {ANGLE * (position - distance):.1f}. Pale: the same two {ON} tokens further on;
    the angle between them, an arc, stays, and with it q·k."""


@schematic(alt_turning, 8.5, 3.7, position=([6, 9, 12, 15, 18], 6), distance=([0, 2, 4, 6], 2))
def turning(ax: Axes, position: int, distance: int) -> None:
    """Rotary positions: a query and a key rotate with their positions, their product depends only
    on the distance.

    One pair of numbers of a head, as a point in the plane, turned by ANGLE radians a token (Su et
    al., arXiv 2104.09864).
    """
    ax.set_xlim(-3.4, 3.4)
    ax.set_ylim(-1.35, 1.35)
    ax.set_aspect("equal")
    ax.axis("off")
    far = position - distance
    words = f"q by {position} · {ANGLE} rad, k by {far} · {ANGLE} rad; pale: both {ON} tokens on"
    where = {-2.0: ("q and k before", 0, 0), 1.6: (words, position, far)}
    for x, (words, at_query, at_key) in where.items():
        ax.add_patch(Circle((x, 0), 1.03, facecolor="none", edgecolor="#c4c4c4"))
        write(ax, x, -1.25, words)
        if x > 0:
            for on, far_out in ((0, 0.4), (ON, 0.55)):
                _between(ax, x, far_out, turned(KEY, at_key + on), turned(QUERY, at_query + on))
        for name, point, place, color in (
            ("q", QUERY, at_query, BLUE), ("k", KEY, at_key, ORANGE)
        ):  # fmt: skip
            if x > 0:
                a, b = turned(point, place + ON)
                arrow(ax, (x, 0), (x + a, b), lighter(color, 0.6))
            _arrow(ax, x, turned(point, place), color, name)
    arrow(ax, (-0.6, 0), (0.2, 0), lighter(INK, 0.2))
    write(ax, -0.2, 0.12, "turned")


HEADS = 8


def alt_grouped_heads(key_heads: int) -> str:
    share = HEADS // key_heads
    names = {1: "multi-query attention", HEADS: "multi-head attention"}
    name = names.get(key_heads, "grouped-query attention")
    cache = f"1/{share} of the cache" if share > 1 else "the whole cache"
    return f"""{HEADS} query heads, {key_heads} of keys and values: {name}, {cache}. Lines join each
    query head to the key head that it reads: neighbours share one, query head h reads key head h //
    {share}."""


@schematic(alt_grouped_heads, 9.5, 2.8, key_heads=([1, 2, 4, 8], 2))
def grouped_heads(ax: Axes, key_heads: int) -> None:
    """Grouped-query attention: query heads share keys and values (Ainslie et al. 2023)."""
    margin, wide = 2.4, 1.0
    bare(ax, margin + wide * HEADS + 0.2, 2.6)
    write(ax, margin - 0.2, 0.5, "query heads", ha="right")
    write(ax, margin - 0.2, 2.0, "key and value heads", ha="right")
    share = HEADS // key_heads
    for group in range(key_heads):
        hue = lighter(COLORS[group % 4], 0.35 * (group // 4))
        left = margin + wide * share * group
        middle = left + wide * share / 2
        for head in range(group * share, (group + 1) * share):
            x = margin + wide * head
            ax.plot([x + wide / 2, middle], [0.75, 1.75], color=hue, linewidth=1.6, zorder=0)
            box(ax, x + 0.1, 0.25, wide - 0.2, 0.5, hue, str(head))
        box(ax, middle - 0.4, 1.75, 0.8, 0.5, hue, str(group))


class Shape(namedtuple("Sizes", "vocabulary hidden layers heads kv_heads head_size ffn")):
    """The sizes of a Llama."""

    def sides(self) -> dict[str, int]:
        """The dimension of each of a layer's matrices other than the hidden size."""
        heads, kv = self.heads * self.head_size, self.kv_heads * self.head_size
        mlp = dict.fromkeys(("gate", "up", "down"), self.ffn)
        return {"q": heads, "k": kv, "v": kv, "o": heads, **mlp}

    def parts(self) -> dict[str, int]:
        """Parameters of the attention, the MLPs, and embedding with head; norms are left out."""
        attention = sum(side for name, side in self.sides().items() if len(name) == 1)
        return {
            "attention": self.layers * self.hidden * attention,
            "MLPs": self.layers * self.hidden * 3 * self.ffn,
            "embedding and head": 2 * self.vocabulary * self.hidden,
        }


MODELS = {
    "Llama 2 7B": Shape(32000, 4096, 32, 32, 32, 128, 11008),
    "Llama 3 405B": Shape(128256, 16384, 126, 128, 8, 128, 53248),
}


def alt_model_matrices(model: str) -> str:
    parts = MODELS[model].parts()
    total = sum(parts.values())
    shares = ", ".join(f"{name} {size / total:.0%}" for name, size in parts.items())
    return f"""{model}: {shares}. Rectangles to scale, the hidden size high: the embedding and the
    head once, and for each layer q, k, v and o of attention and gate, up and down of the MLP, whose
    sum over all layers makes {total / 1e9:.1f}B parameters."""


@schematic(alt_model_matrices, 9.5, 4.0, model=list(MODELS))
def model_matrices(ax: Axes, model: str) -> None:
    """The matrices of a Llama-family model, drawn to scale, which shows where its parameters
    are."""
    margin, unit, gap = 2.3, 0.85, 0.12
    shape = MODELS[model]
    bare(ax, margin + 15.2 * unit, 5.2)
    long, sizes = shape.vocabulary / shape.hidden * unit, shape.parts()
    once = f"V x D, {shape.vocabulary:,} x {shape.hidden:,}"
    for y, name in ((0.2, "embedding"), (4.1, "head")):
        write(ax, margin - 0.2, y + unit / 2, "once", ha="right")
        box(ax, margin, y, long, unit, lighter(GREEN, 0.3), f"{name}: {once}")
    write(ax, margin - 0.2, 2.55, f"in each of\n{shape.layers} layers", ha="right")
    x, ends = margin, {BLUE: margin, ORANGE: margin}
    for name, side in shape.sides().items():
        wide, color = side / shape.hidden * unit, BLUE if len(name) == 1 else ORANGE
        box(ax, x, 2.15, wide, unit, color)
        write(ax, x + wide / 2, 1.9, name, 9)
        ends[color] = x + wide
        x += max(wide, 0.3) + gap
    write(ax, x + 0.1, 2.15 + unit / 2, f"× {shape.layers}", 14, ha="left", fontweight="bold")
    for left, right, name in (
        (margin, ends[BLUE], "attention"), (ends[BLUE] + gap, ends[ORANGE], "MLPs")
    ):  # fmt: skip
        share = f"{name}: {sizes[name] / sum(sizes.values()):.0%} of all"
        write(ax, (left + right) / 2, 3.22, share)
    side = shape.sides()
    legend = f"to scale, all D = {shape.hidden:,} high    q, o: H·C = {side['q']:,} wide    "
    legend += f"k, v: K·C = {side['k']:,}    gate, up, down: F = {shape.ffn:,}"
    write(ax, margin, 3.65, legend, 8.5, ha="left")


LENGTH = 4096
PARTS = {  # GFLOP of one token's forward in Llama 2 70B, and the colour
    "matrices of the layers": (2 * 68_451_041_280 / 1e9, BLUE),
    "attention's scores": (4 * 80 * 8192 * LENGTH / 1e9, ORANGE),  # layers, width
    "head": (2 * 8192 * 32000 / 1e9, GREEN),
}


def repeated(recompute: str) -> list[str]:
    """The parts of forward that run a second time."""
    again = {"none": [], "selective": ["attention's scores"], "full": list(PARTS)[:2]}
    return again[recompute]


def hardware(recompute: str) -> float:
    """GFLOP a token, including recomputation."""
    again = sum(PARTS[name][0] for name in repeated(recompute))
    return 3 * sum(size for size, _ in PARTS.values()) + again


def alt_step_passes(recompute: str) -> str:
    model, total = hardware("none"), hardware(recompute)
    what = " and ".join(repeated(recompute)) or "nothing"
    title = f"Training on one token: {model:.0f} GFLOP, three forwards of {model / 3:.0f}"
    if recompute != "none":
        title = f"""The model's {model:.0f} GFLOP a token are three forwards; with {recompute}
        recomputation the hardware does {total:.0f}"""
    return f"""{title}. Rows of forward, of two backward passes with as many matmuls each, and of
    what runs forward again: {what}. Each row has the layers' matrices, attention's scores and the
    head."""


@schematic(alt_step_passes, 9.5, 3.0, recompute=(["none", "selective", "full"], "full"))
def step_passes(ax: Axes, recompute: str) -> None:
    """The matmuls of a training step: forward, twice as many backward, and what recomputation
    repeats.

    FLOPs of one token in Llama 2 70B at 4,096 tokens; the boxes are not to scale, the head is
    small.
    """
    rows = ("forward", "backward, for the inputs", "backward, for the weights*", "forward again")
    left, widths, high = 3.5, (4.6, 2.6, 1.6), 0.75
    bare(ax, left + sum(widths) + 0.2, high * len(rows) + 1.0)
    for row, title in enumerate(rows):
        y, x = 0.15 + high * row, left
        write(ax, left - 0.2, y + 0.28, title, ha="right")
        for (name, (size, color)), wide in zip(PARTS.items(), widths):
            is_run = row < 3 or name in repeated(recompute)
            if is_run:
                shade = color if row < 3 else lighter(color, 0.6)
                box(ax, x, y, wide - 0.08, 0.56, shade, f"{name}: {size:.1f}", 8.5)
            else:
                box(ax, x, y, wide - 0.08, 0.56, "white", "not again", 8.5, **DASHED)
            x += wide
    legend = f"GFLOP of one token in a text of {LENGTH:,}, Llama 2 70B; widths are not to scale"
    write(ax, 0.1, high * len(rows) + 0.4, legend, ha="left")
    legend = "* scores have no weights: here stand the gradients of keys and values instead"
    write(ax, 0.1, high * len(rows) + 0.78, legend, ha="left")


PLACES, OTHERS, HUES = 12, (12, 7), (BLUE, ORANGE, GREEN)


def counts(counted: int) -> tuple[int, ...]:
    """Unmasked targets of each microbatch; `counted` is the last one's."""
    return (*OTHERS, counted)


def alt_unequal_microbatches(counted: int) -> str:
    sizes = counts(counted)
    most = max(sizes) / counted
    weighs = f"{most:.3g} times as much as" if most > 1 else "as much as"
    return f"""{plural(counted, "target")} in the last microbatch: in a mean of means each weighs
    {weighs} one of the first. Three microbatches of {PLACES} places hold
    {", ".join(map(str, sizes))} targets; beside each stands what one of its tokens weighs in the
    mean of the three means, and in the mean over all {sum(sizes)} tokens."""


@schematic(alt_unequal_microbatches, 10.0, 3.1, counted=([1, 3, 7, 12], 3))
def unequal_microbatches(ax: Axes, counted: int) -> None:
    """Unequal microbatches: a token's weight in the mean of means, and in the mean over tokens."""
    left, wide = 1.9, 0.5
    right = left + wide * PLACES
    bare(ax, right + 5.6, 3.8)
    sizes = counts(counted)
    total, number = sum(sizes), len(sizes)
    for x, words in ((right + 1.6, "mean of means"), (right + 4.2, "mean over tokens")):
        write(ax, x, 0.62, words, fontweight="bold")
    write(ax, right + 2.9, 0.2, "weight of one target")
    for row, (size, color) in enumerate(zip(sizes, HUES)):
        y = 0.95 + 0.75 * row
        write(ax, left - 0.15, y + 0.25, f"microbatch {row}", ha="right")
        for place in range(PLACES):
            fill = color if place < size else PALE
            box(ax, left + wide * place, y, wide - 0.06, 0.5, fill)
        write(ax, right + 1.6, y + 0.25, f"1/({number}·{size}) = {1 / (number * size):.3f}")
        write(ax, right + 4.2, y + 0.25, f"1/{total} = {1 / total:.3f}")
    write(ax, left, 3.5, "coloured: a target that counts    grey: padding, -100", ha="left")


LAYERS = 6


def held(sequences: int) -> dict[str, list[float]]:
    """Memory in units of all parameters, after each layer of forward and backward, and the step."""
    one = 1 / LAYERS
    saved = [*range(LAYERS + 1), *range(LAYERS - 1, -1, -1), 0]
    made = [0] * (LAYERS + 1) + [*range(1, LAYERS + 1), 0]
    return {
        "parameters": [1.0] * len(saved),
        "optimizer": [2.0] * len(saved),
        "gradients": [one * count for count in made],
        "activations": [0.5 * sequences * one * count for count in saved],
    }


def highest(sequences: int) -> float:
    """The peak memory."""
    return max(map(sum, zip(*held(sequences).values())))


def alt_step_lifetimes(sequences: int) -> str:
    return f"""{plural(sequences, "sequence")}: at most {highest(sequences):.3g} times the
    parameters' bytes at once. Parameters and the optimizer's two averages stay through the step;
    activations pile up layer by layer in forward and go in backward, where gradients come; after
    the step the gradients go too."""


@schematic(alt_step_lifetimes, 8.5, 4.0, sequences=([1, 2, 4, 8], 4))
def step_lifetimes(ax: Axes, sequences: int) -> None:
    """Memory through a training step: activations accumulate in forward, gradients in backward.

    A model of LAYERS equal layers with Adam in float32. The size of its activations is made up:
    half of the parameters for each sequence; lab e01 measures the real one.
    """
    hues = {"parameters": BLUE, "optimizer": GREEN, "gradients": PINK, "activations": ORANGE}
    parts = held(sequences)
    times = range(len(parts["parameters"]))
    more = {"activations": "activations\n(invented size)", "optimizer": "optimizer\n(two averages)"}
    labels = [more.get(name, name) for name in parts]
    ax.stackplot(times, *parts.values(), colors=[hues[name] for name in parts], labels=labels)
    ax.set_ylim(0, 1.25 * highest(sequences))
    top = 1.15 * highest(sequences)
    for x in (LAYERS, 2 * LAYERS):
        ax.axvline(x, color="#666666", linestyle="--", linewidth=1)
    for x, words in (
        (LAYERS / 2, "forward"), (1.5 * LAYERS, "backward"), (2 * LAYERS + 0.5, "step")
    ):  # fmt: skip
        ax.annotate(words, (x, top), ha="center", fontsize=9, color=INK)
    ax.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), reverse=True, frameon=False)
    finish(
        ax,
        f"layers done, {LAYERS} forward and {LAYERS} backward",
        "bytes (all parameters = 1)",
    )


PEAK, BANDWIDTH = 989e12, 3.35e12  # FLOP/s, bytes/s
WIDTH = 4096  # of the square weight matrix
BYTES = 2  # of a BF16 number


def intensity(rows: int) -> float:
    """FLOPs per byte of (rows, WIDTH) @ (WIDTH, WIDTH), each matrix read or written once."""
    return 2 * rows * WIDTH**2 / (BYTES * (WIDTH**2 + 2 * rows * WIDTH))


def reachable(flops_a_byte: float) -> float:
    return min(PEAK, BANDWIDTH * flops_a_byte)


def counted(rows: int) -> str:
    return f"{rows:,} row{'' if rows == 1 else 's'}"


def alt_roofline(rows: int) -> str:
    here = intensity(rows)
    share = reachable(here) / PEAK
    return f"""{counted(rows)} of input: {100 * share:.2g}% of an H100's peak at most. A product of
    them with a {WIDTH:,} x {WIDTH:,} weight has {here:,.1f} FLOPs a byte, at {BYTES}
    bytes a number. A line rises with the intensity until the ridge at {PEAK / BANDWIDTH:.0f} FLOPs
    a byte and is flat from there, at {PEAK / 1e12:.0f} TFLOP/s; the point is this product."""


@schematic(alt_roofline, 7.0, 4.4, rows=([1, 8, 64, 256, 1024, 8192], 64))
def roofline(ax: Axes, rows: int) -> None:
    """The roofline: a device's peak attainable FLOP/s by arithmetic intensity.

    Below the ridge, peak over bandwidth, memory is the limit; above it arithmetic (Williams et al.
    2009). The device is an H100 SXM by its data sheet: 989 TFLOP/s in BF16, 3.35 TB/s.
    """
    ridge, here = PEAK / BANDWIDTH, intensity(rows)
    xs = [0.5, ridge, 4000]
    ax.plot(xs, [reachable(x) / 1e12 for x in xs], color=BLUE)
    ax.plot([ridge, ridge], [1, PEAK / 1e12], "--", color="#666666", linewidth=1)
    ax.plot([here], [reachable(here) / 1e12], "o", color=ORANGE, markersize=9)
    style = {"textcoords": "offset points", "fontsize": 9, "color": INK}
    ax.annotate(counted(rows), (here, reachable(here) / 1e12), xytext=(8, -14), **style)
    ax.annotate("memory decides", (3, BANDWIDTH * 3 / 1e12), xytext=(-6, 12), ha="right", **style)
    ax.annotate("arithmetic decides", (700, PEAK / 1e12), xytext=(0, 9), **style)
    ax.annotate(f"ridge: {ridge:.0f} FLOPs a byte", (ridge, 1.6), xytext=(6, 0), **style)
    note = f"point: {counted(rows)} times a {WIDTH:,} x {WIDTH:,} weight, {here:,.1f} FLOPs "
    note += f"a byte\nH100: {PEAK / 1e12:.0f} TFLOP/s, {BANDWIDTH / 1e12:.2f} TB/s"
    ax.text(0.02, 0.985, note, transform=ax.transAxes, va="top", fontsize=9, color=INK)
    ax.set_ylim(1, 5000)
    finish(ax, f"intensity (FLOPs a byte, {BYTES} bytes a number)", "reachable (TFLOP/s)", log="xy")
