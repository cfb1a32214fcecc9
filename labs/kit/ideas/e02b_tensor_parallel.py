"""Schematics of lab e02b, tensor parallel."""

from __future__ import annotations

from matplotlib.axes import Axes

from minitrain.lab.drawing.colors import COLORS, ORANGE, PALE, lighter
from minitrain.lab.drawing.shapes import arrow, bare, box, write
from minitrain.lab.ideas.schematic import schematic
from minitrain.words import plural

TALL, INNER, OUTER = 1.6, 2.2, 2.8  # of X (rows x inner) and A (inner x outer), as drawn


def cells(
    ax: Axes, x: float, y: float, width: float, height: float, name: str,
    down: int = 1, across: int = 1, pale: bool = False,
) -> None:  # fmt: skip
    """A matrix, cut into blocks along rows or columns; a colour is a rank."""
    parts = max(down, across)
    for part in range(parts):
        hue = PALE if pale else lighter(COLORS[part], 0.25)
        wide, high = width / across, height / down
        left = x + (part * wide if across > 1 else 0)
        top = y + (part * high if down > 1 else 0)
        words = name if parts == 1 else f"{name}{part}"
        box(ax, left + 0.02, top + 0.02, wide - 0.04, high - 0.04, hue, words, edgecolor="#999999")


def alt_column_cut(ranks: int) -> str:
    return f"""Column cut on {plural(ranks, "rank")}: rank r makes its columns of Y, forward sends
    nothing. A is cut into {plural(ranks, "piece")} side by side, X is whole on every rank; the
    pieces of Y stand side by side too."""


@schematic(alt_column_cut, 9.5, 3.0, ranks=([1, 2, 4], 2))
def column_cut(ax: Axes, ranks: int) -> None:
    """Two ways to cut Y = X·A over ranks: A by columns, or A by rows and X by columns.

    By columns each rank computes some complete columns of Y: no sum. By rows each computes a
    partial sum of all of Y: the parts are added (Shoeybi et al. 2019). A column cut followed by a
    row cut needs one sum for both.
    """
    bare(ax, 11, 3.3)
    cells(ax, 0.3, 0.9, INNER, TALL, "X", pale=True)
    write(ax, 0.3 + INNER / 2, 2.8, "whole, on every rank")
    write(ax, 2.95, 1.7, "·", 24)
    cells(ax, 3.4, 0.6, OUTER, INNER, "A", across=ranks)
    write(ax, 3.4 + OUTER / 2, 3.05, "columns, one piece a rank")
    write(ax, 6.75, 1.7, "=", 16)
    cells(ax, 7.3, 0.9, OUTER, TALL, "Y", across=ranks)
    write(ax, 7.3 + OUTER / 2, 2.8, "columns: nothing to add")


def alt_row_cut(ranks: int) -> str:
    how = "each makes a part of Y, an all-reduce adds the parts"
    how = how if ranks > 1 else "it makes all of Y"
    return f"""Row cut on {plural(ranks, "rank")}: {how}. X is cut into {plural(ranks, "piece")}
    side by side, A into as many one above the other; each product has the whole shape of Y."""


@schematic(alt_row_cut, 9.5, 2.8, ranks=([1, 2, 4], 2))
def row_cut(ax: Axes, ranks: int) -> None:
    bare(ax, 15.6, 4.2)
    cells(ax, 0.3, 0.9, INNER, TALL, "X", across=ranks)
    write(ax, 0.3 + INNER / 2, 2.8, "columns, one piece a rank", 8.5)
    write(ax, 2.95, 1.7, "·", 24)
    cells(ax, 3.4, 0.6, OUTER, INNER, "A", down=ranks)
    write(ax, 3.4 + OUTER / 2, 3.05, "rows, one piece a rank", 8.5)
    write(ax, 6.6, 1.7, "=", 16)
    for part in range(ranks):
        shift, hue = 0.42 * part, lighter(COLORS[part], 0.25)
        box(ax, 7.0 + shift, 0.5 + shift, OUTER, TALL, hue, edgecolor="white")
        words = f"+ X{part}·A{part}" if part else "X0·A0"
        write(ax, 7.1 + shift, 0.71 + shift, words, 8.5, ha="left", color="black")
    words = "each rank: a part, as large as Y" if ranks > 1 else "Y itself"
    foot = 0.5 + 0.42 * (ranks - 1) + TALL
    write(ax, 7.0 + OUTER / 2 + 0.21 * (ranks - 1), foot + 0.3, words, 8.5)
    if ranks > 1:
        write(ax, 11.83, 1.55, "all-reduce", 8.5, va="bottom")
        arrow(ax, (11.3, 1.75), (12.4, 1.75))
    cells(ax, 12.6, 0.9, OUTER, TALL, "Y", pale=True)
    write(ax, 12.6 + OUTER / 2, 2.8, "whole, on every rank", 8.5)


RANKS, HEADS, FEATURES, TOKENS = 4, 8, 16, 8
HIGH, TOP = 0.75, 0.75  # of a row, and where the first begins
DOORS = {"tensor": ("copy", "reduce"), "sequence": ("all-gather", "reduce-scatter")}


def stream(split: str) -> list[str]:
    """The tokens that each rank holds between the blocks."""
    return ["all tokens"] * RANKS if split == "tensor" else pieces("tokens", TOKENS)


def pieces(name: str, count: int) -> list[str]:
    """Each rank's share of `count` pieces: "heads 0 – 1", "heads 2 – 3" and so on."""
    each = count // RANKS
    return [f"{name} {each * r} – {each * (r + 1) - 1}" for r in range(RANKS)]


def held(ax: Axes, x: float, width: float, name: str, words: list[str]) -> None:
    """A stage of the layer: a box for each rank, coloured if the part is its own."""
    write(ax, x + width / 2, 0.4, name, fontweight="bold")
    for rank, text in enumerate(words):
        hue = PALE if text == "all tokens" else lighter(COLORS[rank], 0.45)
        box(ax, x, TOP + HIGH * rank, width, HIGH - 0.12, hue, text, 10, edgecolor="#999999")


def door(ax: Axes, x: float, name: str, sent: str, back: str) -> None:
    """A collective as a vertical bar, with its messages in forward and backward."""
    height = HIGH * RANKS - 0.12
    is_silent = sent == "nothing"  # hollow: no communication here
    style = {"edgecolor": "#444444", "linestyle": "--"} if is_silent else {}
    box(ax, x, TOP, 0.6, height, "white" if is_silent else "#444444", **style)
    ink = "#444444" if is_silent else "white"
    write(ax, x + 0.3, TOP + height / 2, name, 10, color=ink, rotation=90)
    write(ax, x + 0.3, TOP + height + 0.4, f"forward: {sent}\nbackward: {back}", 10)


def alt_layer_stream(split: str) -> str:
    enter, leave = DOORS[split]
    between = {
        "tensor": f"every rank holds all {TOKENS} tokens and computes the same. The copy, dashed, "
        "sends nothing on the way forward, the reduce is an all-reduce; backward it is the other "
        "way round",
        "sequence": f"each rank holds {TOKENS // RANKS} of {TOKENS} tokens. The all-gather joins "
        "them, the reduce-scatter sums and hands each rank its own",
    }
    return f"""One layer on {RANKS} ranks, {split} parallel: {enter} in, {leave} out. Inside
    attention and the MLP a rank holds all tokens of its own heads and features; in norm and
    addition, between them, {between[split]}."""


@schematic(alt_layer_stream, 10.5, 3.2, split=["tensor", "sequence"])
def layer_stream(ax: Axes, split: str) -> None:
    """A layer on tensor-parallel ranks: where the residual stream is replicated or split, and what
    is communicated.

    Between the blocks every rank holds all T tokens with *tensor*, computing the same, or its T/N
    with *sequence*. Inside a block both hold all tokens, and some heads or features (Shoeybi et al.
    2019; Korthikanti et al. 2022).
    """
    back = {"tensor": ("all-reduce", "nothing"), "sequence": ("reduce-scatter", "all-gather")}
    sent = {"tensor": ("nothing", "all-reduce"), "sequence": ("all-gather", "reduce-scatter")}
    bare(ax, 15.2, TOP + HIGH * RANKS + 0.75)
    for rank in range(RANKS):
        write(ax, 0.1, TOP + HIGH * (rank + 0.45), f"rank {rank}", ha="left", fontweight="bold")
    heads, features = pieces("heads", HEADS), pieces("features", FEATURES)
    for left, name, inside in ((1.2, "attention", heads), (8.2, "MLP", features)):
        held(ax, left, 1.5, "norm", stream(split))
        door(ax, left + 1.6, DOORS[split][0], sent[split][0], back[split][0])
        held(ax, left + 2.3, 2.3, name, inside)
        door(ax, left + 4.7, DOORS[split][1], sent[split][1], back[split][1])
        held(ax, left + 5.4, 1.4, "add to x", stream(split))


ROWS = 3  # of the embedding on each rank


def answers(token: int) -> list[int | None]:
    """The token's row on each rank; None on ranks without it."""
    places = [token - rank * ROWS for rank in range(RANKS)]
    return [place if 0 <= place < ROWS else None for place in places]


def alt_vocabulary_cut(token: int) -> str:
    owner = next(rank for rank, place in enumerate(answers(token)) if place is not None)
    return f"""Word {token} of {RANKS * ROWS} is looked up where its row is: on rank
    {owner}. Each of {RANKS} ranks holds {ROWS} rows; rank {owner} finds it at its own
    row {token % ROWS}, the others give zeros, and an all-reduce gives the sum to every
    rank."""


@schematic(alt_vocabulary_cut, 8.5, 3.9, token=(0, RANKS * ROWS - 1, 7))
def vocabulary_cut(ax: Axes, token: int) -> None:
    """An embedding cut by rows: one rank holds the token's row, the others give zeros, the sum is
    the row."""
    across, wide, high = 2.6, 1.9, 0.5
    bare(ax, across * RANKS + 0.2, 4.6)
    for rank, place in enumerate(answers(token)):
        left, middle = 0.3 + across * rank, 0.3 + across * rank + wide / 2
        write(ax, middle, 0.3, f"rank {rank}", fontweight="bold")
        for row in range(ROWS):
            hue = lighter(COLORS[rank], 0.3 if row == place else 0.8)
            words = f"word {rank * ROWS + row}"
            box(ax, left, 0.6 + high * row, wide, high - 0.06, hue, words)
        found = "zeros" if place is None else f"its row {token} − {rank * ROWS} = {place}"
        hue = PALE if place is None else lighter(COLORS[rank], 0.3)
        arrow(ax, (middle, 0.65 + high * ROWS), (middle, 2.55))
        box(ax, left, 2.6, wide, high, hue, found, edgecolor="#999999")
        arrow(ax, (middle, 3.12), (middle, 3.78), ORANGE)
    write(ax, (0.3 + across * (RANKS - 1) + wide + 0.3) / 2, 3.45, "all-reduce: the sum")
    owner = next(rank for rank, place in enumerate(answers(token)) if place is not None)
    words = f"the vector of word {token}, on every rank"
    box(ax, 0.3, 3.8, across * (RANKS - 1) + wide, high, lighter(COLORS[owner], 0.45), words)
