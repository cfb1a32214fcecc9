"""Schematics of lab e06, lora."""

from __future__ import annotations

import math

from matplotlib.axes import Axes

from minitrain.lab.drawing.colors import BLUE, GREEN, ORANGE, PALE, lighter
from minitrain.lab.drawing.shapes import arrow, bare, box, write
from minitrain.lab.ideas.schematic import schematic
from minitrain.words import plural

INS, OUTS = 64, 128


def low_rank_trained(rank: int) -> int:
    """Numbers in A and B."""
    return rank * (INS + OUTS)


def alt_low_rank(rank: int) -> str:
    share = 100 * low_rank_trained(rank) / (INS * OUTS)
    return f"""Rank {rank}: {low_rank_trained(rank):,} numbers learn beside {INS * OUTS:,} that do
    not. x goes through the frozen W and, beside it, through A of {rank} x {INS} and B of {OUTS} x
    {rank}, times s; both answers are added. What is trained is {share:.0f}% of W."""


@schematic(alt_low_rank, 9.5, 3.6, rank=([1, 2, 4, 8, 16], 8))
def low_rank(ax: Axes, rank: int) -> None:
    """LoRA beside a layer: the frozen matrix, and two thin trained ones.

    R(I + O) numbers are trained; W has I·O (Hu et al. 2021).
    """
    scale = 0.021  # of a feature, as drawn
    bare(ax, 12.4, 5.2)
    wide, high, thin = INS * scale * 1.5, OUTS * scale, max(rank * scale * 1.5, 0.07)
    hue, way = lighter(ORANGE, 0.25), 4.2
    write(ax, 0.5, 2.2, "x", 13, fontweight="bold")
    box(ax, 3.4, 0.2, wide, high, PALE, f"W\n{OUTS} x {INS}\nfrozen", 9, edgecolor="#999999")
    arrow(ax, (0.8, 2.0), (3.3, 1.5))
    arrow(ax, (3.5 + wide, 1.5), (10.7, 2.0))
    arrow(ax, (0.8, 2.4), (3.3, way))
    box(ax, 3.4, way - thin / 2, wide, thin, hue, edgecolor="#999999")
    write(ax, 3.4 + wide / 2, way + 0.6, f"A: {rank} x {INS}, random", 9)
    arrow(ax, (3.5 + wide, way), (8.1, way))
    write(ax, 6.8, way + 0.3, f"{plural(rank, 'number')} a token", 9)
    box(ax, 8.2, 4.9 - high, thin, high, hue, edgecolor="#999999")
    write(ax, 8.2, 5.1, f"B: {OUTS} x {rank}, zero at first", 9)
    arrow(ax, (8.3 + thin, way), (10.7, 2.4))
    write(ax, 9.9, 3.7, "times s", 9, ha="left")
    write(ax, 11.0, 2.2, "+", 14, fontweight="bold")
    arrow(ax, (11.2, 2.2), (11.8, 2.2))
    write(ax, 12.1, 2.2, "y", 13, fontweight="bold")


W = (9.7, -3.1, 0.12, 5.6, -9.9, 2.4)
DELTA = (0.64, 0.25, 0.97, -0.38, -0.73, 0.11)  # an adapter's update
WAYS = ("in place", "beside")


def written(number: float) -> float:
    """The number rounded to two significant decimal digits."""
    return float(f"{number:.1e}")


def after(way: str) -> list[list[float]]:
    """W, then merged, then unmerged."""
    merged = [written(w + d) for w, d in zip(W, DELTA)]
    back = [written(m - d) for m, d in zip(merged, DELTA)] if way == "in place" else list(W)
    return [list(W), merged, back]


def alt_merging(way: str) -> str:
    wrong = sum(a != b for a, b in zip(after(way)[2], W))
    how = "added to W, and subtracted" if way == "in place" else "kept in a matrix of its own"
    return f"""Merged {way}: {wrong} of {len(W)} numbers do not come back. Numbers are rounded to
    two significant digits whenever they are written; the sum is {how}."""


@schematic(alt_merging, 9.5, 3.0, way=(list(WAYS), "in place"))
def merging(ax: Axes, way: str) -> None:
    """Merging and unmerging: added to W itself, or in a separate matrix.

    Numbers have two significant decimal digits here, as bfloat16 has eight binary ones, which makes
    the loss visible where a sum reaches the next power of ten (Hu et al. 2021, section 4.1).
    """
    bare(ax, 12.6, 4.2)
    whole, merged, back = after(way)
    last = "unmerged: less ΔW" if way == "in place" else "unmerged: W itself"
    rows = {"W": whole, "ΔW": DELTA, "merged: W + ΔW": merged, last: back}
    for row, (name, numbers) in enumerate(rows.items()):
        y = 0.3 + 1.0 * row
        write(ax, 2.8, y + 0.3, name, 10, ha="right", fontweight="bold")
        for place, number in enumerate(numbers):
            changed = row == 3 and number != W[place]
            hue = PALE if row == 1 else ORANGE if changed else lighter(BLUE, 0.6)
            box(ax, 3.0 + 0.85 * place, y, 0.75, 0.6, hue, f"{number:g}", 10)
    beside = "the merged one is let go:\nW was never written"
    last = "rounded    orange: another number" if way == "in place" else beside
    write(ax, 8.3, 0.6, "two significant decimal\ndigits of each are kept", 9, ha="left")
    write(ax, 8.3, 0.6 + 2.0, "rounded", 9, ha="left")
    write(ax, 8.3, 0.6 + 3.0, last, 9, ha="left")


ROW, UPDATE = (3.0, 1.2), (-0.6, 1.6)  # of W, and of ΔW


def length(vector: tuple[float, float]) -> float:
    return math.hypot(*vector)


def turned(share: float) -> tuple[float, float]:
    """V: the row plus `share` of the update, towards W + ΔW."""
    v = ROW[0] + UPDATE[0], ROW[1] + UPDATE[1]
    wanted = share * length(ROW) / length(v)
    return v[0] * wanted, v[1] * wanted


def compared(magnitude: float) -> str:
    """The learned magnitude compared with the row's own, its initial value."""
    return (
        f"{magnitude:g} times the row's own" if magnitude != 1 else "the row's own, as at the start"
    )


def alt_lengths(magnitude: float) -> str:
    return f"""LoRA adds ΔW to a row; DoRA takes the direction of the sum, and learns the length m.
    Adding ΔW changes direction and length at once; DoRA learns the length apart from the direction.
    The learned length is {compared(magnitude)}."""


@schematic(alt_lengths, 9.5, 3.2, magnitude=([0.6, 0.8, 1.0, 1.2], 1.0))
def lengths(ax: Axes, magnitude: float) -> None:
    """A row of W as a vector: LoRA moves its tip, DoRA rotates it and learns its length separately.

    y = m V / ‖V‖ with V = W + ΔW (Liu et al. 2024): the direction is V's, the length is m.
    """
    bare(ax, 12.4, 4.6)
    for left, title in ((0.8, "LoRA: one sum"), (6.8, "DoRA: direction, then length")):
        write(ax, left, 0.3, title, 10, ha="left", fontweight="bold")
        start = left, 4.3
        row = left + ROW[0], 4.3 - ROW[1]
        arrow(ax, start, row, BLUE)
        write(ax, row[0] + 0.2, row[1] + 0.1, "row of W", 9, ha="left")
    start, end = (0.8, 4.3), (0.8 + ROW[0] + UPDATE[0], 4.3 - ROW[1] - UPDATE[1])
    arrow(ax, (0.8 + ROW[0], 4.3 - ROW[1]), end, ORANGE)
    middle = 0.8 + ROW[0] + UPDATE[0] / 2 + 0.2, 4.3 - ROW[1] - UPDATE[1] / 2
    write(ax, *middle, "ΔW", 9, ha="left")
    arrow(ax, start, end, GREEN)
    write(ax, end[0] + 0.2, end[1] - 0.2, "V = W + ΔW", 9, ha="left")
    ends = turned(magnitude), (end[0] - 0.8, 4.3 - end[1])
    new, whole = ((6.8 + v[0], 4.3 - v[1]) for v in ends)
    ax.plot((6.8, whole[0]), (4.3, whole[1]), "--", color=GREEN, linewidth=1.2)
    write(ax, whole[0] + 0.5, whole[1] - 0.2, "V: the direction", 9, ha="left")
    arrow(ax, (6.8, 4.3), new, GREEN)
    write(ax, (6.8 + new[0]) / 2 - 0.22, (4.3 + new[1]) / 2 - 0.16, "m", 10)
    write(ax, 6.8, 0.8, f"m, a learned length: {compared(magnitude)}", 9, ha="left")


D, KC, F, M, N, R = 64, 32, 128, 16, 16, 8  # as in lab e06
LAYERS = {"q": (D, D), "k": (D, KC), "v": (D, KC), "o": (D, D),
          "gate": (D, F), "up": (D, F), "down": (F, D)}  # fmt: skip
PLACES = {"q": (1.55, 0.5), "k": (1.55, 1.5), "v": (1.55, 2.5), "attention": (3.65, 1.5),
          "o": (5.45, 1.5), "gate": (7.65, 1.0), "up": (7.65, 2.0),
          "down": (9.45, 1.5)}  # fmt: skip
TOUCHED = {
    "LoRA": tuple(LAYERS),
    "Houlsby": ("o", "down"),
    "(IA)³": ("k", "v", "down"),
    "BitFit": tuple(LAYERS),
    "prefix": ("attention",),
}
DOES = {
    "LoRA": f"two thin matrices of rank {R} beside each layer",
    "Houlsby": "a bottleneck after the last layer of each sublayer",
    "(IA)³": "a factor for each key, value, and input of down",
    "BitFit": "a bias for each output of each layer",
    "prefix": "keys and values before those of the text",
}


def adapter_trained(method: str) -> int:
    """Numbers in one block."""
    sizes = [LAYERS[name] for name in TOUCHED[method] if name in LAYERS]
    return {
        "LoRA": sum(R * (i + o) for i, o in sizes),
        "Houlsby": len(sizes) * (2 * M * D + M + D),
        "(IA)³": 2 * KC + F,
        "BitFit": sum(o for _, o in sizes),
        "prefix": N * 2 * KC,
    }[method]


def frozen() -> int:
    """Numbers in the block's matrices."""
    return sum(i * o for i, o in LAYERS.values())


def alt_adapter_places(method: str) -> str:
    name, verb = f"{method[0].upper()}{method[1:]}", "keeps" if method == "prefix" else "trains"
    return f"""{name} {verb} {adapter_trained(method):,} numbers beside the {frozen():,} in a
    block's matrices. It is {DOES[method]}; everything else is frozen."""


@schematic(alt_adapter_places, 9.5, 3.4, method=(list(TOUCHED), "LoRA"))
def adapter_places(ax: Axes, method: str) -> None:
    """One block of a Llama, and where each fine-tuning method puts its parameters."""
    wide, high = 1.25, 0.75  # of a box
    flow = ((0.65, 1.45), (2.9, 3.3), (4.95, 5.4), (7.1, 7.6), (8.95, 9.4), (11.1, 11.75))  # arrows
    bare(ax, 12.4, 4.2)
    middle = PLACES["k"][1] + high / 2
    for start, end in flow:
        arrow(ax, (start, middle), (end, middle))
    write(ax, 0.4, middle, "x", 12, fontweight="bold")
    write(ax, 12.0, middle, "y", 12, fontweight="bold")
    hue = lighter(ORANGE, 0.2)
    for name, (x, y) in PLACES.items():
        color = PALE if name in LAYERS else "white"
        box(ax, x, y, wide, high, color, name, 9, edgecolor="#999999")
        if name not in TOUCHED[method]:
            continue
        if method == "Houlsby":
            box(ax, x + wide + 0.06, y + 0.12, 0.24, 0.5, hue)
        elif method == "prefix":
            box(ax, x - 0.3, y - 0.1, 0.24, 0.95, hue)
        else:
            box(ax, x, y + 0.79, wide, 0.14, hue)
    write(ax, 0.3, 3.7, f"orange: {DOES[method]}    grey: frozen layers", 9, ha="left")
    write(ax, 0.3, 4.05, "white: no weights    norms and residual sums are left out", 9, ha="left")


WORDS = ("the", "old", "boat", "sank")


def readable(row: int, column: int, count: int) -> bool:
    """True if the query sees the column; learned columns come first."""
    return column < count + row + 1


def read_in_all(count: int) -> int:
    columns = count + len(WORDS)
    return sum(readable(r, c, count) for r in range(len(WORDS)) for c in range(columns))


def alt_prefix_columns(learned: int) -> str:
    pairs = "key and value" if learned == 1 else "keys and values"
    return f"""After {learned} learned {pairs}, {len(WORDS)} words read {read_in_all(learned)} keys.
    Each word reads the {learned} learned {pairs} first, which no token made, and then its own and
    those before it."""


@schematic(alt_prefix_columns, 9.5, 2.8, learned=([1, 2, 3, 4], 2))
def prefix_columns(ax: Axes, learned: int) -> None:
    """Prefix tuning's mask: every token attends to all n learned keys and values before the
    sequence.

    (Li and Liang 2021.) The mask has n more columns, visible to every row; the sequence stays
    causal.
    """
    left, top, side = 2.0, 0.9, 0.6
    bare(ax, 12.4, top + side * len(WORDS) + 0.6)
    for column in range(learned + len(WORDS)):
        x = left + side * column
        name = f"p{column}" if column < learned else WORDS[column - learned]
        write(ax, x + side / 2 - 0.03, top - 0.25, name, 8)
        for row in range(len(WORDS)):
            hue = lighter(ORANGE, 0.25) if column < learned else BLUE
            free = readable(row, column, learned)
            box(ax, x, top + side * row, side - 0.06, side - 0.06, hue if free else PALE)
    for row, word in enumerate(WORDS):
        write(ax, left - 0.2, top + side * (row + 0.45), word, 8, ha="right")
    write(ax, 0.1, 0.15, "who reads", 9, ha="left", fontweight="bold")
    write(ax, left, 0.15, "keys and values", 9, ha="left", fontweight="bold")
    x = left + side * (4 + len(WORDS)) + 0.3
    lines = "orange: learned, made by no token", "blue: made by the text, causal", "grey: not read"
    for row, words in enumerate(lines):
        write(ax, x, top + 0.3 + 0.5 * row, words, 9, ha="left")


PAGES = ("zeros", "fr.0", "sql.0", "fr.1", "free", "fr.2", "sql.1")
TABLES = {"fr": [1, 3, 5], "sql": [2, 6], None: []}
BATCHES = {
    "fr, sql": ("fr", "sql"),
    "fr, none, sql": ("fr", None, "sql"),
    "sql, none": ("sql", None),
}


def filled(batch: str) -> list[list[int]]:
    """Each row's table, padded with page 0 to the longest."""
    tables = [TABLES[name] for name in BATCHES[batch]]
    longest = max(map(len, tables))
    return [table + [0] * (longest - len(table)) for table in tables]


def alt_adapter_pages(batch: str) -> str:
    tables = filled(batch)
    zeros = sum(table.count(0) for table in tables)
    return f"""A batch of {batch}: tables of {len(tables[0])} pages, of which page 0 fills
    {plural(zeros, "place")}. A page is one rank, a row of A and a column of B. Adapter fr has the
    pages 1, 3 and 5, sql 2 and 6; shorter tables, and that of a row without adapter, are filled up
    with page 0, which holds zeros."""


@schematic(alt_adapter_pages, 9.5, 3.2, batch=(list(BATCHES), "fr, none, sql"))
def adapter_pages(ax: Axes, batch: str) -> None:
    """Adapters in pages of one rank, and the page tables of a batch's rows.

    (Sheng et al. 2023, S-LoRA.) Page 0 holds zeros: it pads shorter tables, and adds nothing.
    """
    hues = {"fr": lighter(BLUE, 0.3), "sql": lighter(ORANGE, 0.3), "zeros": lighter(GREEN, 0.6)}
    left = 1.9
    bare(ax, 12.8, 4.4)
    write(ax, 0.2, 0.3, "pages", 10, ha="left", fontweight="bold")
    for page, words in enumerate(PAGES):
        hue = hues.get(words.partition(".")[0], PALE)
        box(ax, left + 1.4 * page, 0.55, 1.25, 0.55, hue, words, 9, edgecolor="#999999")
        write(ax, left + 0.62 + 1.4 * page, 0.3, str(page), 9)
    title = "tables of the batch, filled up with page 0"
    write(ax, 0.2, 1.75, title, 10, ha="left", fontweight="bold")
    for row, (name, table) in enumerate(zip(BATCHES[batch], filled(batch))):
        y = 2.1 + 0.75 * row
        write(ax, left - 0.2, y + 0.27, f"row {row}: {name or 'no adapter'}", 9, ha="right")
        for place, page in enumerate(table):
            hue = hues[name] if page and name else hues["zeros"]
            box(ax, left + 1.0 * place, y, 0.9, 0.55, hue, str(page), 9, edgecolor="#999999")
    lines = (
        "a page is one rank: a row of A and a column of B",
        "gathered by the tables: each row's own A and B",
        "then two products for the whole batch",
    )
    for n, words in enumerate(lines):
        write(ax, 6.2, 2.4 + 0.5 * n, words, 9, ha="left")
