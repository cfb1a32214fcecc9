"""Schematics of lab e02e, context parallel."""

from __future__ import annotations

from matplotlib.axes import Axes

from minitrain.lab.drawing.colors import BLUE, COLORS, GREEN, INK, ORANGE, PALE, lighter
from minitrain.lab.drawing.shapes import arrow, bare, box, write
from minitrain.lab.ideas.schematic import schematic
from minitrain.words import plural

WEIGHTS = (1.0, 0.5, 2.0, 0.5, 1.5, 1.0, 0.5, 1.0)  # exp of each score
VALUES = (4, 0, 6, 2, 1, 3, 8, 0)
KEYS = len(WEIGHTS)


def attended(keys: range) -> tuple[float, float]:
    """The total weight of a set of keys, and its output: the weighted mean of its values."""
    total = sum(WEIGHTS[key] for key in keys)
    return total, sum(WEIGHTS[key] * VALUES[key] for key in keys) / total


def alt_merged_attention(cut: int) -> str:
    (first, one), (second, other) = attended(range(cut)), attended(range(cut, KEYS))
    total, both = attended(range(KEYS))
    return f"""{first:g}/{total:g} of {one:.3f} plus {second:g}/{total:g} of {other:.3f} is
    {both:.3f}, wherever the keys are cut. Eight bars, the exponentials of one query's scores, are
    cut after {cut}; the table beside has what each set weighs, its answer and its share."""


@schematic(alt_merged_attention, 9.5, 3.3, cut=(1, KEYS - 1, 3))
def merged_attention(ax: Axes, cut: int) -> None:
    """Attention to two sets of keys, merged: each output is weighted by its set's total weight.

    One query and eight keys, made by hand: a bar is exp(score), with the key's value below. The
    output over all keys is the same wherever they are cut (Milakov & Gimelshein 2018; Liu et al.
    2023).
    """
    left, floor, wide, high = 1.3, 3.1, 0.72, 1.0
    bare(ax, 13.4, 4.3)
    write(ax, left + wide * KEYS / 2, 0.4, "one query and its eight keys")
    write(ax, left - 0.1, floor - 0.35, "exp(score)", 8.5, ha="right")
    write(ax, left - 0.1, floor + 0.3, "value", 8.5, ha="right")
    for key in range(KEYS):
        hue, x, height = (BLUE if key < cut else ORANGE), left + wide * key, high * WEIGHTS[key]
        box(ax, x + 0.05, floor - height, wide - 0.1, height, lighter(hue, 0.25))
        write(ax, x + wide / 2, floor - height - 0.15, f"{WEIGHTS[key]:g}", 8.5)
        box(ax, x + 0.05, floor + 0.1, wide - 0.1, 0.4, lighter(hue, 0.75), str(VALUES[key]), 8.5)
    for keys, words in ((range(cut), "first set"), (range(cut, KEYS), "second set")):
        middle = left + wide * (keys[0] + len(keys) / 2)
        write(ax, middle, floor + 0.8, words if len(keys) > 1 else words.split()[0], 8.5)
    heads = ("weight:\nsum of exp", "answer:\nmean value", "share of\nthe weight")
    x = left + wide * KEYS + 2.3
    for column, words in enumerate(heads):
        write(ax, x + 1.5 * column, 0.7, words, 8.5, fontweight="bold")
    everything = attended(range(KEYS))
    rows = [("first set", BLUE, attended(range(cut)))]
    rows += [("second set", ORANGE, attended(range(cut, KEYS))), ("merged", GREEN, everything)]
    for row, (words, hue, (total, answer)) in enumerate(rows):
        y = 1.35 + 0.7 * row
        box(ax, x - 2.0, y - 0.27, 5.7, 0.54, lighter(hue, 0.75))
        write(ax, x - 1.9, y, words, ha="left")
        values = (f"{total:g}", f"{answer:.3f}", f"{total / everything[0]:.3f}")
        for column, value in enumerate(values):
            write(ax, x + 1.5 * column, y, value)


RANKS, PIECES = 4, 8


def pieces(rank: int, order: str) -> tuple[int, int]:
    """The two of the sequence's eight pieces that a rank holds."""
    return (2 * rank, 2 * rank + 1) if order == "contiguous" else (rank, PIECES - 1 - rank)


def work(step: int, rank: int, order: str) -> list[tuple[int, int]]:
    """(piece of queries, piece of keys) that a rank computes in a step, without masked ones."""
    keys = pieces((rank - step) % RANKS, order)
    return [(q, k) for q in pieces(rank, order) for k in keys if k <= q]


def lasts(step: int, order: str) -> int:
    """Half-blocks of the busiest rank."""
    return max(len(work(step, rank, order)) for rank in range(RANKS))


def alt_ring_attention(step: int, order: str) -> str:
    counts = [len(work(step, rank, order)) for rank in range(RANKS)]
    total = sum(lasts(s, order) for s in range(RANKS))
    return f"""{order.capitalize()} order, step {step}: ranks 0 to {RANKS - 1} compute
    {", ".join(map(str, counts))} half-blocks. A step lasts as long as its busiest rank: {total}
    half-blocks in all {RANKS} steps, counted from 0. The grid has queries as rows and keys as
    columns, eight pieces each; above the diagonal all is masked."""


@schematic(alt_ring_attention, 9.5, 5.1, step=(0, RANKS - 1, 1), order=["contiguous", "zigzag"])
def ring_attention(ax: Axes, step: int, order: str) -> None:
    """Ring attention, step by step: rows are queries, columns the keys that arrive.

    Under a causal mask a contiguous cut leaves the first ranks idle in later steps; the zigzag
    gives each rank an early and a late piece, and equal work in every step (Brandon et al. 2023).
    """
    left, top, side = 2.6, 1.0, 0.62
    now = {pair: rank for rank in range(RANKS) for pair in work(step, rank, order)}
    when = {p: s for s in range(step + 1) for rank in range(RANKS) for p in work(s, rank, order)}
    owner = {piece: rank for rank in range(RANKS) for piece in pieces(rank, order)}
    bare(ax, 13, top + side * PIECES + 0.95)
    write(ax, left + side * PIECES / 2, 0.35, "keys and values, by piece of the text")
    for piece in range(PIECES):
        write(ax, left + side * (piece + 0.5), 0.8, str(piece))
        y = top + side * piece
        box(ax, 0.1, y + 0.04, left - 0.3, side - 0.08, lighter(COLORS[owner[piece]], 0.25),
            f"queries {piece}: rank {owner[piece]}")  # fmt: skip
        for key in range(PIECES):
            rank = now.get((piece, key))
            color = "white" if key > piece else "#e4e4e4"
            color = "#b4b4b4" if (piece, key) in when else color
            color = color if rank is None else COLORS[rank]
            words = str(when.get((piece, key), ""))
            box(ax, left + side * key + 0.02, y + 0.02, side - 0.04, side - 0.04, color, words, 9,
                edgecolor="#dddddd")  # fmt: skip
    most, total = lasts(step, order), sum(lasts(s, order) for s in range(RANKS))
    words = "a step lasts as long as its busiest rank, here\n"
    words += f"{most} half-blocks; the {RANKS} steps together last {total}"
    write(ax, left + side * PIECES + 0.7, 0.55, words, 8.5, ha="left")
    for rank in range(RANKS):
        y, x = top + 1.2 * rank + 0.2, left + side * PIECES + 0.7
        count = len(work(step, rank, order))
        held = " and ".join(map(str, pieces((rank - step) % RANKS, order)))
        write(ax, x, y + 0.1, f"rank {rank} has keys {held}", ha="left", fontweight="bold")
        for block in range(4):
            color = COLORS[rank] if block < count else "white"
            box(ax, x + 0.7 * block, y + 0.3, 0.62, 0.42, color, edgecolor="#bbbbbb")
        idle = "idle" if count == 0 else f"{count} of 4 half-blocks"
        write(ax, x + 2.95, y + 0.5, idle, 8.5, ha="left")
    legend = "a cell: one half-block    white: masked    light: still to come    grey: done"
    write(ax, 0.1, top + side * PIECES + 0.35, legend, ha="left")
    legend = "colour: in this step    number: the step that computed it"
    write(ax, 0.1, top + side * PIECES + 0.72, legend, ha="left")


FOOT = (
    "keys go on while a rank computes, their gradient once the rank's part is in it;\n"
    "from rank 3 both go to rank 0; the own part is added when the sum has come home"
)


def parts(rank: int, step: int) -> list[int]:
    """The ranks summed in the gradient on `rank` after `step`."""
    owner = (rank - step) % RANKS
    return [(owner + passed) % RANKS for passed in range(1, step + 1)][: RANKS - 1]


def alt_ring_gradients(step: int) -> str:
    if step == RANKS:
        return """Home: every gradient has the parts of all ranks. Each rank has added the part that
        waited to the sum that came from the left: its keys' gradient is complete."""
    held = "; ".join(
        f"rank {rank} has keys of rank {(rank - step) % RANKS} and, of their gradient, "
        f"{'the parts of ' + ' + '.join(map(str, parts(rank, step))) if step else 'nothing yet'}"
        for rank in range(RANKS)
    )
    words = f"the keys that began {plural(step, 'place')} to its left" if step else "its own keys"
    return f"Step {step}: each rank computes its part for {words}. {held}."


@schematic(alt_ring_gradients, 9.5, 3.15, step=(0, RANKS, 2))
def ring_gradients(ax: Axes, step: int) -> None:
    """The backward pass of a ring: a block's gradient follows it, and adds up each rank's part.

    A column is a rank. Keys come from the left as in the forward pass; one step later comes the
    gradient sum of the ranks they have passed (Liu et al. 2023). A block's own rank adds its part
    last, when the sum returns.
    """
    left, across, wide, high = 1.9, 2.5, 1.9, 0.5
    bare(ax, left + across * RANKS, 3.5)
    named = ((0.95, "keys, values of"), (1.65, "their gradient"), (2.35, "own part"))
    for y, words in named if step < RANKS else [(1.65, "the own gradient")]:
        write(ax, left - 0.15, y, words, ha="right")
    for rank in range(RANKS):
        x, owner = left + across * rank, (rank - step) % RANKS
        write(ax, x + wide / 2, 0.4, f"rank {rank}", fontweight="bold")
        own = lighter(COLORS[rank], 0.25)
        if step < RANKS:
            box(ax, x, 0.7, wide, high, lighter(COLORS[owner], 0.25), f"rank {owner}")
            found = " + ".join(map(str, parts(rank, step)))
            box(ax, x, 1.4, wide, high, lighter(COLORS[owner], 0.6) if step else PALE,
                f"parts of {found}" if step else "none yet")  # fmt: skip
            box(ax, x, 2.1, wide, high, own, "waits at home")
        else:
            box(ax, x, 1.4, wide, high, own, "of 0 + 1 + 2 + 3")
        to = (x + across if rank < RANKS - 1 else x + wide + 0.45) - x
        if step < RANKS - 1:
            arrow(ax, (x + wide, 0.95), (x + to, 0.95))
        if 0 < step < RANKS:
            arrow(ax, (x + wide, 1.65), (x + to, 1.65))
    if step < RANKS:
        write(ax, left, 3.1, FOOT, ha="left")


HEADS = 8
LEFT, RIGHT, TOP, WIDE, HIGH = 1.75, 8.4, 1.0, 0.56, 0.62


def holder(piece: int, head: int, cut: str) -> int:
    """The rank that holds a head of a piece of the sequence."""
    return piece if cut == "tokens" else head // (HEADS // RANKS)


def draw_cut(ax: Axes, left: float, cut: str, rank: int, title: str) -> None:
    """A grid of tokens x heads: coloured by the rank that holds a box, numbered by its peer in the
    exchange."""
    write(ax, left + WIDE * HEADS / 2, 0.3, title, fontweight="bold")
    far = "heads" if cut == "tokens" else "tokens"
    for head in range(HEADS):
        x = left + WIDE * head
        write(ax, x + WIDE / 2, 0.75, f"h{head}")
        for piece in range(RANKS):
            own, other = holder(piece, head, cut), holder(piece, head, far)
            is_framed = own == rank or (cut == "tokens" and other == rank)
            edge = {"edgecolor": INK, "linewidth": 1.8} if is_framed else {}
            hue = COLORS[own] if own == rank else lighter(COLORS[own], 0.65)
            y = TOP + HIGH * piece + 0.04
            box(ax, x + 0.04, y, WIDE - 0.08, HIGH - 0.08, hue, str(other), **edge)


def alt_heads_for_tokens(rank: int) -> str:
    first = rank * (HEADS // RANKS)
    return f"""Rank {rank} gives its tokens of {HEADS - HEADS // RANKS} heads, and gets all tokens
    of heads {first} and {first + 1}. Two grids, a row for each rank's tokens and a column for each
    head: on the left a rank has a row, on the right two columns. An all-to-all leads from left to
    right with q, k and v, another one back with the answers."""


@schematic(alt_heads_for_tokens, 9.5, 3.9, rank=(0, RANKS - 1, 1))
def heads_for_tokens(ax: Axes, rank: int) -> None:
    """Ulysses: outside attention a rank has some tokens of all heads, inside all tokens of some
    heads.

    Rows are tokens, columns heads. An all-to-all converts one sharding to the other, and after
    attention a second one converts it back (Jacobs et al. 2023).
    """
    bare(ax, RIGHT + WIDE * HEADS + 0.2, TOP + HIGH * RANKS + 1.0)
    draw_cut(ax, LEFT, "tokens", rank, "between layers: cut by tokens")
    draw_cut(ax, RIGHT, "heads", rank, "in attention: cut by heads")
    for piece in range(RANKS):
        write(
            ax, LEFT - 0.1, TOP + HIGH * (piece + 0.5), f"tokens of rank {piece}", 8.5, ha="right"
        )
    middle, end = TOP + HIGH * RANKS / 2, LEFT + WIDE * HEADS
    arrow(ax, (end + 0.2, middle - 0.15), (RIGHT - 0.15, middle - 0.15))
    arrow(ax, (RIGHT - 0.15, middle + 0.15), (end + 0.2, middle + 0.15))
    write(ax, (end + RIGHT) / 2, middle - 0.55, "all-to-all:\nq, k, v")
    write(ax, (end + RIGHT) / 2, middle + 0.55, "all-to-all:\nanswers")
    foot = TOP + HIGH * RANKS + 0.35
    words = f"number: the rank it goes to; framed: what rank {rank} has or gets"
    write(ax, LEFT, foot, words, ha="left")
    write(ax, LEFT, foot + 0.35, "colour: the rank that has it", ha="left")
    write(ax, RIGHT, foot, "number: the rank it came from", ha="left")
