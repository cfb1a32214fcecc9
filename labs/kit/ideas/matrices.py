"""The matrices of a Llama-family model, drawn to scale: where its parameters lie."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from minitrain.lab.drawing.display import BLUE, GREEN, ORANGE
from minitrain.lab.drawing.figures import lighter
from minitrain.lab.drawing.shapes import bare, box, say
from minitrain.lab.ideas.schematic import Schematic

if TYPE_CHECKING:
    from matplotlib.axes import Axes


@dataclass(frozen=True)
class Shape:
    vocabulary: int
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_size: int
    ffn: int

    def sides(self) -> dict[str, int]:
        """The side of each of a layer's matrices that is not the hidden size."""
        heads, kv = self.heads * self.head_size, self.kv_heads * self.head_size
        return {"q": heads, "k": kv, "v": kv, "o": heads} | dict.fromkeys(
            ("gate", "up", "down"), self.ffn
        )

    def parts(self) -> dict[str, int]:
        """Parameters of the attention, the MLPs, and embedding with head; norms are left out."""
        attention = sum(side for name, side in self.sides().items() if len(name) == 1)
        return {
            "attention": self.layers * self.hidden * attention,
            "MLPs": self.layers * self.hidden * 3 * self.ffn,
            "embedding and head": 2 * self.vocabulary * self.hidden,
        }


MODELS = {
    "Llama 2 7B": Shape(32000, 4096, 32, 32, 32, 128, 11008),
    "Llama 3 405B": Shape(128256, 16384, 126, 128, 8, 128, 53248),
}
LEFT, UNIT, GAP = 2.3, 0.85, 0.12


def draw_matrices(ax: Axes, model: str) -> None:
    shape = MODELS[model]
    bare(ax, LEFT + 15.2 * UNIT, 5.2)
    long, sizes = shape.vocabulary / shape.hidden * UNIT, shape.parts()
    once = f"V x D, {shape.vocabulary:,} x {shape.hidden:,}"
    for y, name in ((0.2, "embedding"), (4.1, "head")):
        say(ax, LEFT - 0.2, y + UNIT / 2, "once", ha="right")
        box(ax, LEFT, y, long, UNIT, lighter(GREEN, 0.3), f"{name}: {once}")
    say(ax, LEFT - 0.2, 2.55, f"in each of\n{shape.layers} layers", ha="right")
    x, ends = LEFT, {BLUE: LEFT, ORANGE: LEFT}
    for name, side in shape.sides().items():
        wide, color = side / shape.hidden * UNIT, BLUE if len(name) == 1 else ORANGE
        box(ax, x, 2.15, wide, UNIT, color)
        say(ax, x + wide / 2, 1.9, name, 9)
        ends[color] = x + wide
        x += max(wide, 0.3) + GAP
    say(ax, x + 0.1, 2.15 + UNIT / 2, f"× {shape.layers}", 14, ha="left", fontweight="bold")
    for left, right, name in (
        (LEFT, ends[BLUE], "attention"), (ends[BLUE] + GAP, ends[ORANGE], "MLPs")
    ):  # fmt: skip
        share = f"{name}: {sizes[name] / sum(sizes.values()):.0%} of all"
        say(ax, (left + right) / 2, 3.22, share)
    side = shape.sides()
    legend = f"to scale, all D = {shape.hidden:,} high    q, o: H·C = {side['q']:,} wide    "
    legend += f"k, v: K·C = {side['k']:,}    gate, up, down: F = {shape.ffn:,}"
    say(ax, LEFT, 3.65, legend, 8.5, ha="left")


def say_matrices(model: str) -> str:
    parts = MODELS[model].parts()
    total = sum(parts.values())
    shares = ", ".join(f"{name} {size / total:.0%}" for name, size in parts.items())
    return (
        f"{model}: {shares}. Rectangles to scale, the hidden size high: the embedding and the "
        f"head once, and for each layer q, k, v and o of attention and gate, up and down of the "
        f"MLP, whose sum over all layers makes {total / 1e9:.1f}B parameters."
    )


model_matrices = Schematic(draw_matrices, say_matrices, (9.5, 4.0), {"model": list(MODELS)})
