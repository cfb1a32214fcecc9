"""Schematics of lab e10, cost."""

from __future__ import annotations

from matplotlib.axes import Axes

from minitrain.lab.drawing.colors import BLUE, GREEN, INK, ORANGE, PALE
from minitrain.lab.drawing.figures import finish
from minitrain.lab.drawing.shapes import bare, box, write
from minitrain.lab.ideas.schematic import schematic
from minitrain.words import plural

WIDTH, HEADS, TOKENS = 12288, 96, 2048
SCORES = 5 * HEADS * TOKENS / WIDTH  # in units of h
HUES = {"whole": BLUE, "cut": ORANGE, "scores": GREEN}
KEPT = (  # operation, kept tensor, its size in units of h, kind
    ("norm", "2h", 2, "whole"),
    ("q, k, v", "2h", 2, "whole"),
    ("scores", "6h", 6, "cut"),
    ("softmax,\ndropout", "5as\n= 80h", SCORES, "scores"),
    ("out", "2h", 2, "cut"),
    ("dropout", "h", 1, "whole"),
    ("norm", "2h", 2, "whole"),
    ("up", "2h", 2, "whole"),
    ("activation", "2f\n= 8h", 8, "cut"),
    ("down", "2f\n= 8h", 8, "cut"),
    ("dropout", "h", 1, "whole"),
)


def shared(
    tensor_ranks: int, sequence_parallel: str, recompute: str
) -> dict[str, tuple[float, int]]:
    """Each kind's size in a layer, in units of h, and the ranks over which it is split."""
    if recompute == "full":
        return {"whole": (2.0, 1), "cut": (0.0, 1), "scores": (0.0, 1)}
    sums = {kind: sum(size for *_, size, k in KEPT if k == kind) for kind in HUES}
    if recompute == "selective":
        sums["scores"] = 0
    sp = tensor_ranks if sequence_parallel == "on" else 1
    return {k: (v, sp if k == "whole" else tensor_ranks) for k, v in sums.items()}


def held(tensor_ranks: int, sequence_parallel: str, recompute: str) -> dict[str, float]:
    """Each kind's size on one rank, in units of h."""
    parts = shared(tensor_ranks, sequence_parallel, recompute)
    return {kind: size / ranks for kind, (size, ranks) in parts.items()}


def as_sum(parts: dict[str, tuple[float, int]]) -> str:
    """A rank's share as a sum: "10h + 24h/8 + 80h/8"."""
    sizes = [(size, ranks) for size, ranks in parts.values() if size]
    return " + ".join(f"{size:.3g}h" + (f"/{n}" if n > 1 else "") for size, n in sizes)


def kilobytes(size: float) -> float:
    """Kilobytes per token for `size` in units of h."""
    return size * WIDTH / 1000


def alt_kept_tensors(tensor_ranks: int, sequence_parallel: str, recompute: str) -> str:
    parts = held(tensor_ranks, sequence_parallel, recompute)
    words = ", ".join(f"{kind} {size:.3g}h" for kind, size in parts.items())
    return f"""A layer keeps {kilobytes(sum(parts.values())):,.0f} kB a token on each of
    {plural(tensor_ranks, "tensor rank")}, recomputing {recompute.replace("none", "nothing")},
    sequence parallelism {sequence_parallel}. Eleven operations from norm to dropout, below each
    what it keeps for backward; a bar adds them up for one rank: {words}, with h bytes as the
    unit."""


@schematic(
    alt_kept_tensors,
    10.5,
    3.8,
    tensor_ranks=([1, 2, 4, 8], 8),
    sequence_parallel=["off", "on"],
    recompute=["none", "selective", "full"],
)
def kept_tensors(ax: Axes, tensor_ranks: int, sequence_parallel: str, recompute: str) -> None:
    """Activations of one layer kept for backward, and the part sharded by tensor parallelism.

    A layer of GPT-3's size (h 12,288, 96 heads, f 4h) at 2,048 tokens, attention not fused
    (Korthikanti et al. 2022, section 4): bytes per token in 16 bits, each tensor below its
    operation.
    """
    left, wide, scale = 1.9, 1.06, 0.094  # column width; bar width per h
    bare(ax, left + wide * len(KEPT) + 0.1, 4.6)
    for y, words in ((0.6, "operation"), (1.6, "it keeps"), (3.25, "on one rank")):
        write(ax, left - 0.2, y, words, ha="right")
    for column, (operation, words, _, kind) in enumerate(KEPT):
        x = left + wide * column
        is_held = column == 0 if recompute == "full" else kind != "scores" or recompute == "none"
        box(ax, x, 0.25, wide - 0.1, 0.7, "#e4e4e4", operation, 8)
        box(ax, x, 1.3, wide - 0.1, 0.6, HUES[kind] if is_held else PALE, words)
    x = left
    for kind, size in held(tensor_ranks, sequence_parallel, recompute).items():
        if size:
            fits = size * scale > 0.55
            box(ax, x, 2.95, size * scale, 0.6, HUES[kind], f"{size:.3g}h" if fits else "")
            if not fits:
                first = kind == "whole"  # its label must fit: the next has its own above
                place = x + (size * scale - 0.1 if first else size * scale / 2)
                write(ax, place, 2.8, f"{size:.3g}h", 8.5, ha="right" if first else "center")
        x += size * scale
    whole = sum(held(tensor_ranks, sequence_parallel, recompute).values())
    addends = as_sum(shared(tensor_ranks, sequence_parallel, recompute))
    total = f"{whole:.3g}h = {kilobytes(whole):,.0f} kB a token"
    is_cut = "/" in addends
    write(ax, x + 0.15, 3.25, f"= {addends} = {total}" if is_cut else f"= {total}", ha="left")
    units = f"bytes a token: h = {WIDTH:,}, f = 4h; a = {HEADS} heads, s = {TOKENS:,} tokens"
    write(ax, left, 2.2, units, ha="left")
    legend = "blue: whole on each tensor rank, without sequence parallelism   orange: cut by tp"
    write(ax, left, 3.8, f"{legend}   green: the scores, cut too", ha="left")
    if recompute != "none":
        words = "pale in the second row: not kept, computed again in backward"
        write(ax, left, 4.3, words, ha="left")


POINTS = (  # (days, price in thousand dollars)
    (3, 95), (4, 70), (4, 88), (6, 52), (7, 66), (8, 50), (9, 74), (11, 41), (13, 58), (15, 41),
    (17, 30), (19, 47), (22, 33),
)  # fmt: skip


def front() -> list[tuple[float, float]]:
    """The points not dominated by any other, sorted by days."""
    return [
        (days, price)
        for days, price in sorted(POINTS)
        if not any(d <= days and p <= price and (d, p) != (days, price) for d, p in POINTS)
    ]


def alt_pareto_front(point: int) -> str:
    days, price = POINTS[point]
    better = sum(d <= days and p <= price and (d, p) != (days, price) for d, p in POINTS)
    found = f"beaten by {plural(better, 'point')} in its grey corner"
    found = found if better else "on the front: none is as fast and as cheap"
    return f"""{days} days, {price} thousand dollars: {found}. Of {len(POINTS)} points
    {len(front())} form the front, a staircase from fast and dear to slow and cheap; the grey
    rectangle holds all that is at least as fast and as cheap as the chosen point."""


@schematic(alt_pareto_front, 7.0, 4.4, point=(0, len(POINTS) - 1, 4))
def pareto_front(ax: Axes, point: int) -> None:
    """The Pareto front: points that no other point beats in both costs. The points are invented."""
    days, price = POINTS[point]
    best = front()
    ax.fill_between([0, days], 0, price, color=PALE, zorder=0)
    ax.plot(*zip(*best), "-", color=BLUE, drawstyle="steps-post")
    beaten = "beaten: another is at least\nas good in both"
    ax.plot(*zip(*POINTS), "o", color="#8a8a8a", label=beaten)
    ax.plot(*zip(*best), "s", color=BLUE, markersize=7, label="on the front")
    ring = {"markersize": 11, "fillstyle": "none", "markeredgewidth": 2.4}
    ax.plot([days], [price], "o", color=ORANGE, label="the chosen one", **ring)
    words = {"textcoords": "offset points", "fontsize": 9, "color": INK}
    ax.annotate("at least as fast\nand as cheap", (0.4, 3), xytext=(0, 0), **words)
    ax.set_xlim(0, 24)
    ax.set_ylim(0, 105)
    finish(ax, "time (days)", "price (thousand dollars)")
    title = {"title": "a point: one way to train (invented)", "title_fontsize": 9}
    ax.legend(loc="upper right", fontsize=9, alignment="left", **title)
