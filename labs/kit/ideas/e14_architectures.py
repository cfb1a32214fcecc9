"""Schematics of lab e14, architectures that change the cost."""

from __future__ import annotations

from matplotlib.axes import Axes

from minitrain.lab.drawing.colors import BLUE, GREEN, INK, ORANGE, lighter
from minitrain.lab.drawing.shapes import arrow, bare, box, rectangle, write
from minitrain.lab.ideas.schematic import schematic

TOKENS = [2, 4, 6, 8]
FORMS = ["recurrent", "chunked", "parallel"]
SIDE = 8
PATTERNS = ["AAAAAAAA", "DDDADDDA", "DDDDDDDD"]
NAMES = {"A": ("attention", ORANGE), "D": ("state", BLUE)}


def alt_growing_cache(tokens: int) -> str:
    return f"""A cache and a state after {tokens} tokens. Attention holds a key and a value for each
    of {tokens} tokens, {2 * tokens} vectors, and the next token reads them all. A layer with a
    state has summed them into one matrix, which is as large as after one token."""


@schematic(alt_growing_cache, 9, 3.2, tokens=(TOKENS, 6))
def growing_cache(ax: Axes, tokens: int) -> None:
    """Keys and values, a column a token; below, the one matrix that they are added to."""
    bare(ax, 11.2, 4.2)
    for row, name in enumerate(("keys", "values")):
        write(ax, 0.1, 0.7 + 0.6 * row, name, ha="left")
        for token in range(tokens):
            box(ax, 1.3 + 0.6 * token, 0.45 + 0.6 * row, 0.5, 0.5, ORANGE, str(token + 1), 8.5)
    write(ax, 6.6, 1.0, f"cache: {2 * tokens} vectors", ha="left")
    write(ax, 0.1, 3.0, "state", ha="left")
    for row in range(3):
        for column in range(3):
            shade = lighter(BLUE, 0.2 * (row + column))
            ax.add_patch(rectangle(1.3 + 0.6 * column, 2.2 + 0.55 * row, 0.5, 0.45, shade))
    write(ax, 6.6, 3.0, "one matrix, whatever came before", ha="left")
    arrow(ax, (4.6, 3.0), (3.3, 3.0), INK)
    write(ax, 4.7, 3.0, "+ key × value", ha="left")


def pairs_of(form: str, size: int = 4) -> int:
    """Scores that are computed: in chunks of `size` of 8 tokens."""
    chunk = {"recurrent": 0, "chunked": size, "parallel": SIDE}[form]
    return SIDE // chunk * chunk * (chunk + 1) // 2 if chunk else 0


def alt_three_forms(form: str) -> str:
    states = {"recurrent": 8, "chunked": 2, "parallel": 1}[form]
    return f"""The {form} form for 8 tokens: {pairs_of(form)} scores, {states} updates of the state.
    Row i is the token that reads, column j the token that is read. An orange square is a score;
    what is blue is read from the state, at once for all tokens before."""


@schematic(alt_three_forms, 7.5, 4.4, form=(FORMS, "chunked"))
def three_forms(ax: Axes, form: str) -> None:
    size = {"recurrent": 0, "chunked": 4, "parallel": SIDE}[form]
    bare(ax, 12.5, 8.9)
    for row in range(SIDE):
        for column in range(row + 1):
            same = size and row // size == column // size
            color = ORANGE if same else lighter(BLUE, 0.45)
            ax.add_patch(rectangle(0.6 + column, 0.4 + row, 0.92, 0.92, color))
        write(ax, 0.3, 0.85 + row, str(row + 1), 8.5)
    write(ax, 9.0, 1.4, "orange: a score, in a matmul", ha="left")
    write(ax, 9.0, 2.2, "blue: read from the state", ha="left")
    for end in range(size or 1, SIDE + 1, size or 1):
        ax.plot([0.55, 8.6], [0.36 + end] * 2, color=GREEN, linewidth=1.4)
    write(ax, 9.0, 3.0, "green: the state is updated", ha="left")


def alt_layer_pattern(pattern: str) -> str:
    kept = pattern.count("A")
    return f"""Eight layers, {kept} of them attention. Each attention layer keeps a cache that grows
    with the tokens, each other one a state that does not: of the cache of eight attention layers,
    {kept}/8 is left."""


@schematic(alt_layer_pattern, 9, 2.8, pattern=(PATTERNS, "DDDADDDA"))
def layer_pattern(ax: Axes, pattern: str) -> None:
    """Layers from left to right, the first on the left, each with the memory that it holds."""
    bare(ax, 10.4, 3.8)
    for place, kind in enumerate(pattern):
        name, color = NAMES[kind]
        x = 0.2 + 1.25 * place
        box(ax, x, 0.4, 1.1, 0.8, color, name, 8.5)
        height = 1.7 if kind == "A" else 0.35
        ax.add_patch(rectangle(x + 0.3, 1.4, 0.5, height, lighter(color, 0.4)))
        if place:
            arrow(ax, (x - 0.15, 0.8), (x, 0.8), INK)
    write(ax, 0.2, 3.5, "below each layer: what it holds after many tokens", ha="left")
