"""Schematics of lab e02d, expert parallel."""

from __future__ import annotations

import math

from matplotlib.axes import Axes

from minitrain.lab.drawing.colors import COLORS, INK, lighter
from minitrain.lab.drawing.shapes import bare, box, write
from minitrain.lab.ideas.schematic import schematic

EXPERTS = 4
CHOICES = ((0, 1), (0, 2), (1, 0), (0, 3), (2, 0), (1, 3), (0, 2), (3, 0))  # best first, with p:
PLACES = 16  # sorted rows: tokens x experts per token
NO_LIMIT = "none"


def kept(capacity: str | float) -> list[list[int]]:
    """The tokens that each of the experts computes, from high to low p."""
    asked: list[list[tuple[int, int]]] = [[] for _ in range(EXPERTS)]  # (-p, token)
    for token, two in enumerate(CHOICES):
        for expert in two:
            asked[expert].append((-chance(token, expert), token))
    most = room(capacity)
    return [[token for _, token in sorted(mine)[:most]] for mine in asked]


def room(capacity: str | float) -> int:
    """The most rows that an expert computes."""
    return PLACES if capacity == NO_LIMIT else math.ceil(float(capacity) * PLACES / EXPERTS)


def chance(token: int, expert: int) -> int:
    """The p of one of the token's chosen experts, in percent."""
    p = ((60, 30), (50, 40), (50, 45), (70, 20), (60, 30), (55, 30), (56, 35), (61, 20))  # percent
    return p[token][CHOICES[token].index(expert)]


def alt_router(capacity: str | float) -> str:
    counts = [len(tokens) for tokens in kept(capacity)]
    dropped = PLACES - sum(counts)
    limit = "without a limit" if capacity == NO_LIMIT else f"at a capacity factor of {capacity}"
    rows = ", ".join(f"expert {e}: {n}" for e, n in enumerate(counts))
    lost = f"{dropped} of {PLACES} choices dropped" if dropped else "no choice dropped"
    return f"""Rows of each expert {limit}: {", ".join(map(str, counts))}; {lost}. Eight tokens on
    the left, each with its two experts and their p; lines lead to rows in the middle, sorted by
    expert, of one expert from high to low p ({rows}), and back to the tokens on the right."""


@schematic(alt_router, 9.5, 5.8, capacity=([1.0, 1.25, 1.5, 2.0, NO_LIMIT], 1.25))
def router(ax: Axes, capacity: str | float) -> None:
    """The path of tokens through experts: routed, sorted by expert, computed, weighted and
    restored.

    Eight tokens choose two of four experts each; the choices are made by hand so that one expert is
    overloaded. An expert's rows are ordered from high to low p; with a capacity it drops the last
    ones.
    """
    high = 0.5  # of a row
    bare(ax, 13.2, high * PLACES + 1.3)
    write(ax, 1.75, 0.3, "tokens, and their two choices", fontweight="bold")
    write(ax, 7.25, 0.3, "rows by expert, from high to low p", fontweight="bold")
    write(ax, 12.2, 0.3, "weighted sums", fontweight="bold")
    rows = [(expert, token) for expert, tokens in enumerate(kept(capacity)) for token in tokens]
    if len(rows) < PLACES:
        write(ax, 0.1, high * PLACES + 1.0, "dashed: dropped, its expert is full", 8.5, ha="left")
    if capacity != NO_LIMIT:
        most = f"{capacity} · {PLACES} / {EXPERTS} = {room(capacity)}"
        write(ax, 7.25, high * PLACES + 1.0, f"kept: {most} rows an expert at most", 8.5)
    write(ax, 12.9, high * PLACES + 1.0, "0: .60 is expert 0, p = 0.60", 8.5, ha="right")
    for token, two in enumerate(CHOICES):
        y = 0.7 + 2 * high * token + high / 2
        box(ax, 0.1, y, 1.1, high - 0.08, "#e4e4e4", f"token {token}", 8.5)
        box(ax, 11.6, y, 1.3, high - 0.08, "#e4e4e4", f"token {token}", 8.5)
        for nth, expert in enumerate(two):
            is_kept = (expert, token) in rows
            style = {} if is_kept else {"linestyle": "--", "edgecolor": INK}
            color = lighter(COLORS[expert], 0.25) if is_kept else "white"
            words = f"{expert}: .{chance(token, expert)}"
            box(ax, 1.35 + 0.97 * nth, y, 0.9, high - 0.08, color, words, 8.5, **style)
    for place, (expert, token) in enumerate(rows):
        y = 0.7 + high * place
        color = lighter(COLORS[expert], 0.25)
        words = f"expert {expert}: token {token}, .{chance(token, expert)}"
        box(ax, 5.9, y, 2.7, high - 0.08, color, words, 8.5)
        start = 0.7 + 2 * high * token + high / 2 + (high - 0.08) / 2
        middle = y + (high - 0.08) / 2
        style = {"color": COLORS[expert], "linewidth": 1, "alpha": 0.8}
        ax.plot([3.3, 5.85], [start, middle], **style)
        ax.plot([8.65, 11.55], [middle, start], **style)


RANKS, OWN = 2, 2  # ranks, experts of each
LOADS = {
    "even": ((0, 0, 1, 2, 2, 3), (0, 1, 1, 2, 3, 3)),
    "uneven": ((0, 0, 0, 1, 2, 3), (0, 0, 0, 1, 1, 3)),
}  # the expert of each row of a rank, sorted
COLUMNS = (
    "own rows, by expert",
    "arrived, by source",
    "computed, by expert",
    "by source again",
    "answers at home",
)
LEFT, ACROSS, WIDE, HIGH, BAND = 0.95, 2.95, 2.25, 0.36, 3.6
Row = tuple[int, int, int]  # (rank it belongs to, its place there, its expert)


def stages(load: str) -> list[list[list[Row]]]:
    """stages[column][rank]: the rows that a rank has, from top to bottom."""
    own = [[(rank, i, e) for i, e in enumerate(rows)] for rank, rows in enumerate(LOADS[load])]
    everywhere = [row for rows in own for row in rows]
    arrived = [[row for row in everywhere if row[2] // OWN == rank] for rank in range(RANKS)]
    computed = [sorted(rows, key=lambda row: row[2]) for rows in arrived]
    return [own, arrived, computed, arrived, own]


def height_of(ranks: list[list[Row]], row: Row) -> float:
    """The middle of a row's box."""
    rank = next(rank for rank, rows in enumerate(ranks) if row in rows)
    return 0.7 + BAND * rank + HIGH * ranks[rank].index(row) + 0.18


def alt_expert_exchange(load: str) -> str:
    own, _, computed, *_ = stages(load)
    total = sum(map(len, own))
    left = sum(row[2] // OWN != rank for rank, rows in enumerate(own) for row in rows)
    counts = " and ".join(str(len(rows)) for rows in computed)
    return f"""With an {load} load the two ranks compute {counts} of {total} rows. {left} rows go to
    the other rank, in the first all-to-all, and come home in the second. Five columns for each
    rank, joined by lines in the colour of an expert: its own rows sorted by expert, what arrived,
    by source, the same sorted by expert, the answers by source again, answers at home. A box names
    its expert and the rank that it came from."""


@schematic(alt_expert_exchange, 9.5, 5.4, load=["even", "uneven"])
def expert_exchange(ax: Axes, load: str) -> None:
    """Experts on two ranks: an all-to-all sends rows to their expert, another returns the outputs.

    A colour is an expert; each box shows its row's source rank. Received rows are ordered by
    source, then expert, and are sorted by expert before the computation (Lepikhin et al. 2020,
    GShard).
    """
    between = ("all-to-all", "sort", "sort back", "all-to-all")  # between columns
    right = LEFT + (len(COLUMNS) - 1) * ACROSS + WIDE
    foot = 0.95 + BAND + HIGH * len(LOADS[load][-1])
    bare(ax, right + 0.1, foot + 0.2)
    legend = "expert 2 ← rank 0: a row for expert 2, of a token of rank 0    a colour: one expert"
    write(ax, LEFT, foot, legend, 8.5, ha="left")
    columns = stages(load)
    for column, words in enumerate(COLUMNS):
        write(ax, LEFT + ACROSS * column + WIDE / 2, 0.22, words, fontweight="bold")
    for gap, words in enumerate(between):
        write(ax, LEFT + ACROSS * gap + (WIDE + ACROSS) / 2, 0.53, words, 8.5)
    for rank in range(RANKS):
        top = 0.7 + BAND * rank
        write(ax, 0.45, top + 0.2, f"rank {rank}", fontweight="bold")
        write(ax, 0.45, top + 0.55, f"experts\n{OWN * rank} and {OWN * rank + 1}", 8, va="top")
    ax.plot([0, right], [0.55 + BAND] * 2, color=INK, linewidth=0.8)
    for column, ranks in enumerate(columns):
        x = LEFT + ACROSS * column
        for row in (row for rows in ranks for row in rows):
            hue, y = COLORS[row[2]], height_of(ranks, row)
            words = f"expert {row[2]} ← rank {row[0]}"
            box(ax, x, y - 0.15, WIDE, 0.3, lighter(hue, 0.25), words, 8.5)
            if column:
                start = height_of(columns[column - 1], row)
                ax.plot([x - ACROSS + WIDE + 0.05, x - 0.05], [start, y], color=hue, linewidth=1)
