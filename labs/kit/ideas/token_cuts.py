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
LEFT, ACROSS, GROUND, HIGH = 2.1, 1.6, 3.4, 3.6  # of the bars


def stages(rule: str) -> dict[str, list[float]]:
    """The probabilities after the temperature and after each cut, scaled up to a sum of 1."""
    temperature, top_k, top_p = RULES[rule]
    left = _scaled([math.exp(logit / temperature) for logit in LOGITS])
    found = {f"temperature {temperature:g}": left}
    if top_k is not None:
        left = _scaled([p if place < top_k else 0.0 for place, p in enumerate(left)])
        found[f"top-k {top_k}"] = left
    if top_p is not None:
        left = _scaled([p if sum(left[:place]) < top_p else 0.0 for place, p in enumerate(left)])
        found[f"top-p {top_p:g}"] = left
    return found


def _scaled(odds: list[float]) -> list[float]:
    return [one / sum(odds) for one in odds]


def kept(rule: str) -> tuple[list[float], list[float]]:
    """The probabilities after the temperature, and what they are after both cuts."""
    every = list(stages(rule).values())
    return every[0], every[-1]


def draw_token_cuts(ax: Axes, rule: str) -> None:
    bare(ax, 11.8, 5.4)
    before, after = kept(rule)
    for place, (word, old, new) in enumerate(zip(WORDS, before, after)):
        x = LEFT + ACROSS * place
        tall, left = (max(HIGH * p, 0.05) for p in (old, new))  # thinner ones have no corners
        box(ax, x, GROUND - tall, 0.5, tall, PALE, edgecolor="#999999")
        if new:
            box(ax, x + 0.55, GROUND - left, 0.5, left, BLUE)
        say(ax, x + 0.52, GROUND + 0.28, word, 10, fontweight="bold")
    were = [1.0] * len(WORDS)
    for row, (words, left) in enumerate(stages(rule).items()):
        y = GROUND + 0.8 + 0.45 * row
        say(ax, LEFT - 0.3, y, words, 9, ha="right")
        for place, (was, p) in enumerate(zip(were, left)):
            if was:
                say(ax, LEFT + 0.52 + ACROSS * place, y, _percent(p) if p else "cut off", 9)
        were = left
    words = "grey: by temperature alone    blue: what is drawn from"
    say(ax, 11.6, 0.35, words, 9, ha="right")


def say_token_cuts(rule: str) -> str:
    *steps, (_, last) = stages(rule).items()
    between = "".join(f" {words.capitalize()} leaves {_named(p)}." for words, p in steps[1:])
    return (
        f"{rule[0].upper()}{rule[1:]}: {sum(p > 0 for p in last)} of {len(WORDS)} words can be "
        f"drawn.{between} What is drawn from is {_named(last)}. A low temperature makes what is "
        "likely likelier; each cut takes words away at the unlikely end, and what is left is "
        "scaled up to a sum of 1 before the next."
    )


def _percent(p: float) -> str:
    return f"{p:.0%}" if p >= 0.005 else "< 1%"


def _named(probabilities: list[float]) -> str:
    return ", ".join(f"{word} {_percent(p)}" for word, p in zip(WORDS, probabilities) if p)


token_cuts = Schematic(
    draw_token_cuts, say_token_cuts, (9.5, 4.2), {"rule": (list(RULES), "top-k 3, then top-p 0.7")}
)
