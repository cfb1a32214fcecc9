"""Which tokens' keys and values are computed in each step, without a cache and with one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from minitrain.lab.drawing.display import BLUE, ORANGE
from minitrain.lab.drawing.figures import lighter
from minitrain.lab.drawing.shapes import bare, box, say
from minitrain.lab.ideas.schematic import Schematic

if TYPE_CHECKING:
    from matplotlib.axes import Axes

PROMPT = 4
SIDE = 0.46


def computed(steps: int, cached: bool) -> list[list[int]]:
    """The tokens that each step computes; the first reads the prompt."""
    if cached:
        return [list(range(PROMPT)), *([PROMPT + step] for step in range(steps - 1))]
    return [list(range(PROMPT + step)) for step in range(steps)]


def total(steps: int, cached: bool) -> int:
    return sum(map(len, computed(steps, cached)))


def draw_cache_steps(ax: Axes, tokens: int) -> None:
    bare(ax, 13.6, 1.1 + SIDE * 7 + 0.4)
    for left, cached, title in ((1.3, False, "without a cache"), (8.1, True, "with a cache")):
        words = f"{title}: {total(tokens, cached)} tokens"
        say(ax, left, 0.35, words, 10, ha="left", fontweight="bold")
        for step, own in enumerate(computed(tokens, cached)):
            y = 0.7 + SIDE * step
            say(ax, left - 0.15, y + 0.2, f"step {step + 1}", 8.5, ha="right")
            for token in range(PROMPT + step):
                hue = ORANGE if token in own else lighter(BLUE, 0.7)
                box(ax, left + SIDE * token, y, SIDE - 0.05, SIDE - 0.05, hue)
    words = "orange: computed in this step    pale blue: only its keys and values are read"
    say(ax, 1.3, 1.1 + SIDE * 7, words, 9, ha="left")


def say_cache_steps(tokens: int) -> str:
    without, with_one = total(tokens, False), total(tokens, True)
    return (
        f"{tokens} tokens after a prompt of {PROMPT}: {without} tokens computed without a cache, "
        f"{with_one} with one. Without one every step computes the whole text so far again. With "
        "one the first step computes the prompt, and each later step one token; of those before "
        "it only keys and values are read."
    )


cache_steps = Schematic(draw_cache_steps, say_cache_steps, (9.5, 3.2), {"tokens": (1, 7, 6)})
