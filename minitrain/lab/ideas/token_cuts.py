"""What temperature, top-k and top-p leave of a model's next-token probabilities.

Fan et al. 2018 (top-k); Holtzman et al. 2020 (top-p): of what top-k has left, the fewest whose sum
reaches p.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from minitrain.lab.drawing.display import BLUE
from minitrain.lab.drawing.shapes import PALE, bare, box, say
from minitrain.lab.ideas.schematic import Schematic

if TYPE_CHECKING:
    from matplotlib.axes import Axes

WORDS = ("dog", "cat", "bird", "fox", "pig", "cow")
LOGITS = (2.0, 1.6, 1.1, 0.4, -0.3, -1.0)
RULES: dict[str, tuple[float, int | None, float | None]] = {
    "as it is": (1.0, None, None),
    "temperature 0.4": (0.4, None, None),
    "temperature 2": (2.0, None, None),
    "top-k 3": (1.0, 3, None),
    "top-p 0.7": (1.0, None, 0.7),
    "top-k 3, then top-p 0.7": (1.0, 3, 0.7),
}


def kept(rule: str) -> tuple[list[float], list[float]]:
    """The probabilities after the temperature, and what they are after both cuts."""
    temperature, top_k, top_p = RULES[rule]
    odds = [math.exp(logit / temperature) for logit in LOGITS]
    before = [one / sum(odds) for one in odds]
    left = [p if top_k is None or place < top_k else 0.0 for place, p in enumerate(before)]
    left = [p / sum(left) for p in left]
    if top_p is not None:
        left = [p if sum(left[:place]) < top_p else 0.0 for place, p in enumerate(left)]
    return before, [p / sum(left) for p in left]


def draw_token_cuts(ax: Axes, rule: str) -> None:
    bare(ax, 10.4, 4.4)
    before, after = kept(rule)
    for place, (word, old, new) in enumerate(zip(WORDS, before, after)):
        x = 0.8 + 1.55 * place
        box(ax, x, 3.5 - 3.2 * old, 0.5, 3.2 * old, PALE, edgecolor="#999999")
        if new:
            box(ax, x + 0.55, 3.5 - 3.2 * new, 0.5, 3.2 * new, BLUE)
        say(ax, x + 0.52, 3.72, word, 10)
        say(ax, x + 0.52, 4.1, f"{old:.0%} → {f'{new:.0%}' if new else 'cut off'}", 9)
    say(ax, 9.9, 0.4, "grey: by temperature alone    blue: after both cuts", 9, ha="right")


def say_token_cuts(rule: str) -> str:
    left = [f"{word} {p:.0%}" for word, p in zip(WORDS, kept(rule)[1]) if p]
    return (
        f"{rule[0].upper()}{rule[1:]}: {len(left)} of {len(WORDS)} words can be drawn. They are "
        f"{', '.join(left)}. A low temperature makes what is likely likelier; the cuts take words "
        "away at the unlikely end, and what is left is scaled up to a sum of 1."
    )


token_cuts = Schematic(
    draw_token_cuts, say_token_cuts, (9.0, 3.8), {"rule": (list(RULES), "top-k 3, then top-p 0.7")}
)
