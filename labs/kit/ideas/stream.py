"""A layer on tensor-parallel ranks: where the stream is whole, where it is split, what moves.

Between the blocks every rank of *tensor* holds all T tokens, and computes the same with them; of
*sequence* it holds its T/N. Inside a block both hold all tokens, and some heads or features
(Shoeybi et al. 2019; Korthikanti et al. 2022).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from minitrain.lab.drawing.display import BLUE, GREEN, ORANGE, PINK
from minitrain.lab.drawing.figures import lighter
from minitrain.lab.drawing.shapes import PALE, bare, box, say
from minitrain.lab.ideas.schematic import Schematic

if TYPE_CHECKING:
    from matplotlib.axes import Axes

RANKS, HEADS, FEATURES, TOKENS = 4, 8, 16, 8
HUES = (BLUE, ORANGE, GREEN, PINK)
HIGH, TOP = 0.75, 0.75  # of a row, and where the first begins
DOORS = {"tensor": ("copy", "reduce"), "sequence": ("all-gather", "reduce-scatter")}
BACK = {"tensor": ("all-reduce", "nothing"), "sequence": ("reduce-scatter", "all-gather")}
SENT = {"tensor": ("nothing", "all-reduce"), "sequence": ("all-gather", "reduce-scatter")}


def draw_layer_stream(ax: Axes, split: str) -> None:
    bare(ax, 15.2, TOP + HIGH * RANKS + 0.75)
    for rank in range(RANKS):
        say(ax, 0.1, TOP + HIGH * (rank + 0.45), f"rank {rank}", ha="left", fontweight="bold")
    heads, features = pieces("heads", HEADS), pieces("features", FEATURES)
    for left, name, inside in ((1.2, "attention", heads), (8.2, "MLP", features)):
        held(ax, left, 1.5, "norm", stream(split))
        door(ax, left + 1.6, DOORS[split][0], SENT[split][0], BACK[split][0])
        held(ax, left + 2.3, 2.3, name, inside)
        door(ax, left + 4.7, DOORS[split][1], SENT[split][1], BACK[split][1])
        held(ax, left + 5.4, 1.4, "add to x", stream(split))


def stream(split: str) -> list[str]:
    """What a rank holds between the blocks."""
    return ["all tokens"] * RANKS if split == "tensor" else pieces("tokens", TOKENS)


def pieces(name: str, count: int) -> list[str]:
    """Which of so many each rank has: "heads 0 – 1", "heads 2 – 3" and so on."""
    each = count // RANKS
    return [f"{name} {each * r} – {each * (r + 1) - 1}" for r in range(RANKS)]


def held(ax: Axes, x: float, width: float, name: str, words: list[str]) -> None:
    """A station of the layer: a box for each rank, coloured where it has its own part."""
    say(ax, x + width / 2, 0.4, name, fontweight="bold")
    for rank, text in enumerate(words):
        hue = PALE if text == "all tokens" else lighter(HUES[rank], 0.45)
        box(ax, x, TOP + HIGH * rank, width, HIGH - 0.12, hue, text, 10, edgecolor="#999999")


def door(ax: Axes, x: float, name: str, sent: str, back: str) -> None:
    """What all ranks pass together, and what it sends on the way forward and on the way back."""
    height = HIGH * RANKS - 0.12
    is_silent = sent == "nothing"  # hollow: here no rank waits for another
    style = {"edgecolor": "#444444", "linestyle": "--"} if is_silent else {}
    box(ax, x, TOP, 0.6, height, "white" if is_silent else "#444444", **style)
    ink = "#444444" if is_silent else "white"
    say(ax, x + 0.3, TOP + height / 2, name, 10, color=ink, rotation=90)
    say(ax, x + 0.3, TOP + height + 0.4, f"forward: {sent}\nbackward: {back}", 10)


def say_layer_stream(split: str) -> str:
    enter, leave = DOORS[split]
    between = {
        "tensor": f"every rank holds all {TOKENS} tokens and computes the same. The copy, dashed, "
        "sends nothing on the way forward, the reduce is an all-reduce; backward it is the other "
        "way round",
        "sequence": f"each rank holds {TOKENS // RANKS} of {TOKENS} tokens. The all-gather joins "
        "them, the reduce-scatter sums and hands each rank its own",
    }
    return (
        f"One layer on {RANKS} ranks, {split} parallel: {enter} in, {leave} out. Inside attention "
        "and the MLP a rank holds all tokens of its own heads and features; in norm and addition, "
        f"between them, {between[split]}."
    )


layer_stream = Schematic(
    draw_layer_stream, say_layer_stream, (10.5, 3.2), {"split": ["tensor", "sequence"]}
)
