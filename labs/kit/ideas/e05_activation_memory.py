"""Schematics of lab e05, activation memory."""

from __future__ import annotations

import math
from typing import NamedTuple

from matplotlib.axes import Axes

from minitrain.lab.drawing.colors import BLUE, GREEN, ORANGE, PALE, lighter
from minitrain.lab.drawing.shapes import arrow, bare, box, write
from minitrain.lab.ideas.schematic import schematic
from minitrain.words import plural

LAYERS, SAVED, INPUT = 6, 4, 1
KEPT, AGAIN = "all tensors", "inputs only"
WORK = {"forward": BLUE, "again": ORANGE, "backward": GREEN}


class Moment(NamedTuple):
    """One layer's run: kind of work, layer, and units held meanwhile."""

    work: str
    layer: int
    held: int


def moments(keep: str) -> list[Moment]:
    """A whole step, from the first layer's forward back to its backward."""
    each = SAVED if keep == KEPT else INPUT
    found = [Moment("forward", layer, each * (layer + 1)) for layer in range(LAYERS)]
    for layer in reversed(range(LAYERS)):
        held = each * layer + SAVED
        again = [] if keep == KEPT else [Moment("again", layer, held)]
        found += [*again, Moment("backward", layer, held)]
    return found


def alt_recomputation(keep: str) -> str:
    peak = max(moment.held for moment in moments(keep))
    forwards = LAYERS if keep == KEPT else 2 * LAYERS
    how = "rises with every forward and falls with every backward"
    if keep == AGAIN:
        how = "rises by one a forward; each layer is repeated just before its own backward"
    return f"""Forward keeps {keep}: at most {peak} units held, {forwards} forwards run. There are
    {LAYERS} layers. Each saves {SAVED} units, {INPUT} of them its input. What is held
    {how}."""


@schematic(alt_recomputation, 9.5, 3.6, keep=([KEPT, AGAIN], AGAIN))
def recomputation(ax: Axes, keep: str) -> None:
    """Activations held for backward over a step, kept or recomputed.

    Every layer saves four units, one of them its input. If kept, they accumulate until backward
    frees them layer by layer; if recomputed, only inputs accumulate, and each backward first
    recomputes its layer's other three (Chen et al. 2016).
    """
    left, floor, wide, unit = 1.2, 3.9, 0.5, 0.135
    bare(ax, left + wide * 3 * LAYERS + 0.3, floor + 0.9)
    write(ax, left - 0.15, floor - unit * SAVED * LAYERS / 2, "units\nheld", ha="right")
    write(ax, left - 0.15, floor + 0.2, "layer", ha="right")
    if keep == AGAIN:
        height = floor - unit * SAVED * LAYERS
        ends = [left, left + wide * 3 * LAYERS]
        ax.plot(ends, [height] * 2, "--", color=BLUE, linewidth=1.2)
        words = f"{SAVED * LAYERS} units, if all is kept"
        write(ax, left + wide * 3 * LAYERS, height + 0.2, words, ha="right")
    for place, (work, layer, held) in enumerate(moments(keep)):
        x = left + wide * place
        box(ax, x, floor - unit * held, wide - 0.06, unit * held, WORK[work])
        write(ax, x + wide / 2 - 0.03, floor - unit * held - 0.16, str(held))
        write(ax, x + wide / 2 - 0.03, floor + 0.2, str(layer))
    arrow(ax, (left, floor + 0.45), (left + wide * 3 * LAYERS, floor + 0.45))
    legend = "time    blue: forward    orange: the same forward, again    green: backward"
    legend += f"    a layer saves {SAVED} units, {INPUT} of them its input"
    write(ax, left, floor + 0.72, legend, 8.5, ha="left")


D, HC, KC, F = 128, 128, 64, 448


class Made(NamedTuple):
    """A tensor: its numbers per token, as a symbol and a count, and the modes that keep it."""

    name: str
    symbol: str
    numbers: int
    kept: tuple[str, ...]
    needed: str  # why backward needs it


TENSORS = (
    Made("x, the block's input", "D", D, ("none", "selective", "full"), "the norm"),
    Made("norm(x)", "D", D, ("none",), "products that make q, k, v"),
    Made("q", "HC", HC, ("none", "selective"), "attention"),
    Made("k", "KC", KC, ("none", "selective"), "attention"),
    Made("v", "KC", KC, ("none", "selective"), "attention"),
    Made("attention's result", "HC", HC, ("none", "selective"), "attention, output product"),
    Made("its output product o", "D", D, ("selective",), "nothing; x + o is made from it"),
    Made("y = x + o", "D", D, ("none",), "the norm"),
    Made("norm(y)", "D", D, ("none",), "products that make gate, up"),
    Made("gate", "F", F, ("none", "selective"), "silu"),
    Made("silu(gate)", "F", F, ("none",), "silu(gate) * up"),
    Made("up", "F", F, ("none", "selective"), "silu(gate) * up"),
    Made("silu(gate) * up", "F", F, ("none",), "the product down"),
)


def kept_numbers(recompute: str) -> int:
    """Numbers kept per token, over the tensors in the picture."""
    return sum(made.numbers for made in TENSORS if recompute in made.kept)


def alt_block_tensors(recompute: str) -> str:
    made_again = {
        "none": "Nothing is made again",
        "selective": "Norms, sums and the activation are made again, no product is",
        "full": "All but the input is made again",
    }
    kept = [made.name for made in TENSORS if recompute in made.kept]
    return f"""Recompute {recompute}: a block holds {kept_numbers(recompute):,} numbers a token for
    backward. Kept are {", ".join(kept)}. {made_again[recompute]}. D = HC = {D}, KC = {KC}, F = {F};
    a few numbers a head and norm are left out."""


@schematic(alt_block_tensors, 9.5, 4.6, recompute=(["none", "selective", "full"], "none"))
def block_tensors(ax: Axes, recompute: str) -> None:
    """The tensors of one block of a Llama, and which of them are saved for backward.

    A bar's length is the tensor's numbers per token, for the course's model of 1M parameters.
    Selective recomputation keeps the outputs of weight matmuls and of the fused attention
    (Korthikanti et al. 2022); all others are cheap to recompute from these and the block's input.
    """
    left, high, scale = 3.2, 0.36, 4.2 / F
    bare(ax, 11.4, high * (len(TENSORS) + 1) + 0.55)
    write(ax, left - 0.15, 0.2, "tensor, in order of forward", ha="right", fontweight="bold")
    sizes = f"numbers a token: D = HC = {D}, KC = {KC}, F = {F}"
    write(ax, left, 0.2, sizes, ha="left", fontweight="bold")
    write(ax, 8.4, 0.2, "backward needs it for", ha="left", fontweight="bold")
    for row, made in enumerate(TENSORS):
        y = 0.42 + high * row
        color = BLUE if recompute in made.kept else "white"
        write(ax, left - 0.15, y + 0.14, made.name, ha="right")
        box(ax, left, y, scale * made.numbers, high - 0.08, color, made.symbol, 8.5,
            edgecolor="#999999")  # fmt: skip
        write(ax, 8.4, y + 0.14, made.needed, ha="left")
    y = 0.42 + high * len(TENSORS) + 0.25
    legend = "blue: held until backward    "
    legend += "white: gone after its use, made again if backward needs it"
    write(ax, left, y, legend, ha="left")


DEPTH = 16


def peak(segments: int) -> int:
    """Peak units: the inputs of other segments, and one segment's own layers."""
    return DEPTH if segments == 0 else segments - 1 + DEPTH // segments


def alt_checkpoints(segments: int) -> str:
    if segments == 0:
        return f"""No checkpoints: all {DEPTH} layers' activations are held, none is
        computed again. Every box is filled after the forward pass, and stays so until its
        backward."""
    return f"""{plural(segments, "segment")} of {plural(DEPTH // segments, "layer")}: at
    most {peak(segments)} held at once, each of the {DEPTH} layers runs forward twice.
    Forward keeps {plural(segments, "input")}; while the last segment runs back, {segments - 1} of
    other segments and its own {DEPTH // segments}, its input among them."""


@schematic(alt_checkpoints, 9.5, 3.2, segments=([0, 1, 2, 4, 8, 16], 2))
def checkpoints(ax: Axes, segments: int) -> None:
    """Checkpointing: which activations are kept, which are recomputed, and the cost.

    A segment keeps only its input; its backward reruns its forward and then holds its layers'
    activations (Chen et al. 2016). A unit is what one layer saves, its input, so a segment's input
    is the first of its layers' units.
    """
    left, wide = 2.7, 0.62
    each = DEPTH // segments if segments else 0
    bare(ax, left + wide * DEPTH + 0.1, 3.9)
    write(ax, left - 0.15, 0.75, "kept after forward", ha="right")
    write(ax, left - 0.15, 1.75, "while the last\nsegment runs back", ha="right")
    write(ax, left - 0.15, 3.0, f"held at once: {peak(segments)}", ha="right")
    for layer in range(DEPTH):
        x = left + wide * layer
        is_input = segments > 0 and layer % each == 0
        is_kept = segments == 0 or is_input
        color = BLUE if segments == 0 else GREEN
        box(ax, x, 0.5, wide - 0.08, 0.5, color if is_kept else "white", str(layer),
            edgecolor="#bbbbbb")  # fmt: skip
        is_again = segments > 0 and layer >= DEPTH - each
        now = ORANGE if is_again else color if is_kept else "white"
        box(ax, x, 1.5, wide - 0.08, 0.5, now, str(layer), edgecolor="#bbbbbb")
    for number in range(DEPTH):
        color = lighter(BLUE, 0.3) if segments == 0 else GREEN
        color = ORANGE if segments and number >= segments - 1 else color
        color = color if number < peak(segments) else PALE
        box(ax, left + wide * number, 2.75, wide - 0.08, 0.5, color)
    kinds = "green: a waiting segment's input    orange: run forward again, now runs back"
    legend = "blue: held" if segments == 0 else f"{kinds}    white: not held"
    write(ax, left, 3.62, f"a box: a layer's input    {legend}", 8.5, ha="left")


SCORES = ((1.0, 0.0), (3.0, 1.0), (2.0, 2.0), (5.0, 1.0))  # of one query, tile by tile
TILES = len(SCORES)


def carried(tile: int) -> tuple[float, float, float]:
    """(maximum, sum, factor on the previous sum) after tiles 0 … tile."""
    top, total, kept = -math.inf, 0.0, 0.0
    for scores in SCORES[: tile + 1]:
        new = max(top, *scores)
        kept = math.exp(top - new)
        total = total * kept + sum(math.exp(s - new) for s in scores)
        top = new
    return top, total, kept


def alt_attention_tiles(tile: int) -> str:
    top, total, kept = carried(tile)
    step = f"What was summed before is multiplied by exp(old - new) = {kept:.3f}. " if tile else ""
    return f"""After tile {tile} of the last row: maximum {top:g}, sum of exponentials {total:.3f}.
    {step}The grid has queries as rows and keys as columns, in tiles; those above the diagonal are
    masked, those before this one are done, and only one tile is ever in memory."""


@schematic(alt_attention_tiles, 9.5, 3.8, tile=(0, TILES - 1, 1))
def attention_tiles(ax: Axes, tile: int) -> None:
    """Attention in tiles: the order of the tiles, and the state carried between them.

    For one row of queries: the running maximum, the running sum of exponentials, and the factor on
    the previous sum when the maximum grows, exp(old - new) (Milakov & Gimelshein 2018; Dao et al.
    2022). The scores are made up.
    """
    side, left, head = 0.95, 1.4, 0.9
    bare(ax, 13.2, head + side * TILES + 0.85)
    write(ax, left + side * TILES / 2, 0.25, "keys and values, tile by tile")
    for row in range(TILES):
        write(ax, left - 0.1, head + side * (row + 0.5), f"queries {row}", ha="right")
        for column in range(TILES):
            is_now = row == TILES - 1 and column == tile
            is_done = column < tile if row == TILES - 1 else column <= row
            color = "white" if column > row else "#dcdcdc"
            color = ORANGE if is_now else lighter(BLUE, 0.5) if is_done else color
            words = ", ".join(f"{s:g}" for s in SCORES[column]) if row == TILES - 1 else ""
            box(ax, left + side * column + 0.03, head + side * row + 0.03, side - 0.06, side - 0.06,
                color, words if column <= tile else "", edgecolor="#cccccc")  # fmt: skip
    legend = "white: masked, never computed   blue: done and forgotten   orange: in memory"
    write(ax, 0.2, head + side * TILES + 0.27, f"{legend}   grey: still to come", ha="left")
    legend = "numbers: one query's scores of the tile's two keys   sum of exp: of score - maximum"
    write(ax, 0.2, head + side * TILES + 0.6, legend, ha="left")
    x = left + side * TILES + 1.0
    heads = ("after tile", "maximum", "sum of exp", "factor on old sum\nexp(old - new)")
    for place, words in enumerate(heads):
        write(ax, x + 1.75 * place + 0.5, head + 0.05, words, 8.5, fontweight="bold")
    for done in range(TILES):
        y = head + 0.65 + 0.65 * done
        top, total, kept = carried(done)
        values = (str(done), f"{top:g}", f"{total:.3f}", f"{kept:.3f}" if done else "-")
        if done <= tile:
            color = lighter(ORANGE, 0.75) if done == tile else "white"
            box(ax, x - 0.3, y - 0.24, 7.0, 0.48, color)
            for place, words in enumerate(values):
                write(ax, x + 1.75 * place + 0.5, y, words)
