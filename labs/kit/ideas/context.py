"""Ring attention, step by step: rows are queries, columns the keys that come by.

Under a causal mask a contiguous cut leaves the first ranks idle, step after step; the zigzag gives
each rank an early and a late piece, and in every step all have as much to do (Brandon et al. 2023).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from minitrain.lab.drawing.display import BLUE, GREEN, ORANGE, PINK
from minitrain.lab.drawing.figures import lighter
from minitrain.lab.drawing.shapes import bare, box, say
from minitrain.lab.ideas.schematic import Schematic

if TYPE_CHECKING:
    from matplotlib.axes import Axes

HUES = (BLUE, ORANGE, GREEN, PINK)
RANKS, PIECES = 4, 8
LEFT, TOP, SIDE = 2.6, 1.0, 0.62


def pieces(rank: int, order: str) -> tuple[int, int]:
    """The two of eight pieces of the text that a rank holds."""
    return (2 * rank, 2 * rank + 1) if order == "contiguous" else (rank, PIECES - 1 - rank)


def work(step: int, rank: int, order: str) -> list[tuple[int, int]]:
    """(piece of queries, piece of keys) that a rank computes in a step; what is masked is not."""
    keys = pieces((rank - step) % RANKS, order)
    return [(q, k) for q in pieces(rank, order) for k in keys if k <= q]


def lasts(step: int, order: str) -> int:
    """Half-blocks of the busiest rank."""
    return max(len(work(step, rank, order)) for rank in range(RANKS))


def draw_ring_attention(ax: Axes, step: int, order: str) -> None:
    now = {pair: rank for rank in range(RANKS) for pair in work(step, rank, order)}
    when = {p: s for s in range(step + 1) for rank in range(RANKS) for p in work(s, rank, order)}
    owner = {piece: rank for rank in range(RANKS) for piece in pieces(rank, order)}
    bare(ax, 13, TOP + SIDE * PIECES + 0.95)
    say(ax, LEFT + SIDE * PIECES / 2, 0.35, "keys and values, by piece of the text")
    for piece in range(PIECES):
        say(ax, LEFT + SIDE * (piece + 0.5), 0.8, str(piece))
        y = TOP + SIDE * piece
        box(ax, 0.1, y + 0.04, LEFT - 0.3, SIDE - 0.08, lighter(HUES[owner[piece]], 0.25),
            f"queries {piece}: rank {owner[piece]}")  # fmt: skip
        for key in range(PIECES):
            rank = now.get((piece, key))
            color = "white" if key > piece else "#e4e4e4"
            color = "#b4b4b4" if (piece, key) in when else color
            color = color if rank is None else HUES[rank]
            words = str(when.get((piece, key), ""))
            box(ax, LEFT + SIDE * key + 0.02, y + 0.02, SIDE - 0.04, SIDE - 0.04, color, words, 9,
                edgecolor="#dddddd")  # fmt: skip
    most, total = lasts(step, order), sum(lasts(s, order) for s in range(RANKS))
    words = "a step lasts as long as its busiest rank, here\n"
    words += f"{most} half-blocks; the {RANKS} steps together last {total}"
    say(ax, LEFT + SIDE * PIECES + 0.7, 0.55, words, 8.5, ha="left")
    for rank in range(RANKS):
        y, x = TOP + 1.2 * rank + 0.2, LEFT + SIDE * PIECES + 0.7
        count = len(work(step, rank, order))
        held = " and ".join(map(str, pieces((rank - step) % RANKS, order)))
        say(ax, x, y + 0.1, f"rank {rank} has keys {held}", ha="left", fontweight="bold")
        for block in range(4):
            color = HUES[rank] if block < count else "white"
            box(ax, x + 0.7 * block, y + 0.3, 0.62, 0.42, color, edgecolor="#bbbbbb")
        idle = "idle" if count == 0 else f"{count} of 4 half-blocks"
        say(ax, x + 2.95, y + 0.5, idle, 8.5, ha="left")
    legend = "a cell: one half-block    white: masked    light: still to come    grey: done"
    say(ax, 0.1, TOP + SIDE * PIECES + 0.35, legend, ha="left")
    legend = "colour: in this step    number: the step that computed it"
    say(ax, 0.1, TOP + SIDE * PIECES + 0.72, legend, ha="left")


def say_ring_attention(step: int, order: str) -> str:
    counts = [len(work(step, rank, order)) for rank in range(RANKS)]
    total = sum(lasts(s, order) for s in range(RANKS))
    return (
        f"{order.capitalize()} order, step {step}: ranks 0 to {RANKS - 1} compute "
        f"{', '.join(map(str, counts))} half-blocks. A step lasts as long as its busiest rank: "
        f"{total} half-blocks in all {RANKS} steps, counted from 0. The grid has queries as rows "
        "and keys as columns, eight pieces each; above the diagonal all is masked."
    )


ring_attention = Schematic(
    draw_ring_attention,
    say_ring_attention,
    (9.5, 5.1),
    {"step": (0, RANKS - 1, 1), "order": ["contiguous", "zigzag"]},
)
