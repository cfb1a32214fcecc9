"""The tensors of one block of a Llama, and which of them wait for backward.

A bar is as long as the tensor has numbers a token, for the course's model of 1M parameters. What
selective recomputation keeps are the results of products with weights and of the fused attention
(Korthikanti et al. 2022); from these and the block's input all others follow cheaply.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from minitrain.lab.drawing.display import BLUE
from minitrain.lab.drawing.shapes import bare, box, say
from minitrain.lab.ideas.schematic import Schematic

if TYPE_CHECKING:
    from matplotlib.axes import Axes

D, HC, KC, F = 128, 128, 64, 448


class Made(NamedTuple):
    """A tensor: its numbers a token, as a symbol and as a count, and in which ways it is kept."""

    name: str
    symbol: str
    numbers: int
    kept: tuple[str, ...]
    needed: str  # what its backward is for


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
LEFT, HIGH, SCALE = 3.2, 0.36, 4.2 / F


def kept_numbers(recompute: str) -> int:
    """A token's, of the tensors in the picture."""
    return sum(made.numbers for made in TENSORS if recompute in made.kept)


def draw_block_tensors(ax: Axes, recompute: str) -> None:
    bare(ax, 11.4, HIGH * (len(TENSORS) + 1) + 0.55)
    say(ax, LEFT - 0.15, 0.2, "tensor, in order of forward", ha="right", fontweight="bold")
    sizes = f"numbers a token: D = HC = {D}, KC = {KC}, F = {F}"
    say(ax, LEFT, 0.2, sizes, ha="left", fontweight="bold")
    say(ax, 8.4, 0.2, "backward needs it for", ha="left", fontweight="bold")
    for row, made in enumerate(TENSORS):
        y = 0.42 + HIGH * row
        color = BLUE if recompute in made.kept else "white"
        say(ax, LEFT - 0.15, y + 0.14, made.name, ha="right")
        box(ax, LEFT, y, SCALE * made.numbers, HIGH - 0.08, color, made.symbol, 8.5,
            edgecolor="#999999")  # fmt: skip
        say(ax, 8.4, y + 0.14, made.needed, ha="left")
    y = 0.42 + HIGH * len(TENSORS) + 0.25
    legend = (
        "blue: held until backward    white: gone after its use, made again if backward needs it"
    )
    say(ax, LEFT, y, legend, ha="left")


def say_block_tensors(recompute: str) -> str:
    made_again = {
        "none": "Nothing is made again",
        "selective": "Norms, sums and the activation are made again, no product is",
        "full": "All but the input is made again",
    }
    kept = [made.name for made in TENSORS if recompute in made.kept]
    return (
        f"Recompute {recompute}: a block holds {kept_numbers(recompute):,} numbers a token for "
        f"backward. Kept are {', '.join(kept)}. {made_again[recompute]}. D = HC = {D}, KC = {KC}, "
        f"F = {F}; a few numbers a head and norm are left out."
    )


block_tensors = Schematic(
    draw_block_tensors,
    say_block_tensors,
    (9.5, 4.6),
    {"recompute": (["none", "selective", "full"], "none")},
)
