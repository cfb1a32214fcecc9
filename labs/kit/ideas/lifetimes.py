"""What memory holds through a training step: activations pile up in forward, gradients in backward.

A model of LAYERS equal layers with Adam in float32. The size of its activations is invented: half
of the parameters for each sequence; lab e01 measures what they are.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from minitrain.lab.drawing.display import BLUE, GREEN, ORANGE, PINK
from minitrain.lab.drawing.figures import INK, finish
from minitrain.lab.ideas.schematic import Schematic
from minitrain.words import plural

if TYPE_CHECKING:
    from matplotlib.axes import Axes

LAYERS = 6
HUES = {"parameters": BLUE, "optimizer": GREEN, "gradients": PINK, "activations": ORANGE}


def held(sequences: int) -> dict[str, list[float]]:
    """In units of all parameters, after each layer of forward and of backward, and the step."""
    one = 1 / LAYERS
    saved = [*range(LAYERS + 1), *range(LAYERS - 1, -1, -1), 0]
    made = [0] * (LAYERS + 1) + [*range(1, LAYERS + 1), 0]
    return {
        "parameters": [1.0] * len(saved),
        "optimizer": [2.0] * len(saved),
        "gradients": [one * count for count in made],
        "activations": [0.5 * sequences * one * count for count in saved],
    }


def highest(sequences: int) -> float:
    """The most that is held at once."""
    return max(map(sum, zip(*held(sequences).values())))


def draw_lifetimes(ax: Axes, sequences: int) -> None:
    parts = held(sequences)
    times = range(len(parts["parameters"]))
    more = {"activations": "activations\n(invented size)", "optimizer": "optimizer\n(two averages)"}
    labels = [more.get(name, name) for name in parts]
    ax.stackplot(times, *parts.values(), colors=[HUES[name] for name in parts], labels=labels)
    ax.set_ylim(0, 1.25 * highest(sequences))
    top = 1.15 * highest(sequences)
    for x in (LAYERS, 2 * LAYERS):
        ax.axvline(x, color="#666666", linestyle="--", linewidth=1)
    for x, words in (
        (LAYERS / 2, "forward"), (1.5 * LAYERS, "backward"), (2 * LAYERS + 0.5, "step")
    ):  # fmt: skip
        ax.annotate(words, (x, top), ha="center", fontsize=9, color=INK)
    ax.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), reverse=True, frameon=False)
    finish(ax, f"layers done, {LAYERS} forward and {LAYERS} backward", "bytes (all parameters = 1)")


def say_lifetimes(sequences: int) -> str:
    return (
        f"{plural(sequences, 'sequence')}: at most {highest(sequences):.3g} times the parameters' "
        "bytes at once. Parameters and the optimizer's two averages stay "
        "through the step; activations pile up layer by layer in forward and go in backward, "
        "where gradients come; after the step the gradients go too."
    )


step_lifetimes = Schematic(
    draw_lifetimes, say_lifetimes, (8.5, 4.0), {"sequences": ([1, 2, 4, 8], 4)}
)
