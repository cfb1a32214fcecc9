"""What a round of speculation costs and brings, beside the target alone, on one scale of time."""

from __future__ import annotations

from typing import TYPE_CHECKING

from minitrain.lab.drawing.display import BLUE, ORANGE
from minitrain.lab.drawing.shapes import arrow, bare, box, say
from minitrain.lab.ideas.schematic import Schematic
from minitrain.words import plural

if TYPE_CHECKING:
    from matplotlib.axes import Axes

ACCEPTANCE, DRAFT = 0.8, 0.25  # of a draft; a draft's time, in passes
GROWTH = 0.05  # of a pass's time, for each token beyond the first
LEFT, UNIT = 2.2, 2.1


def tokens(drafts: int) -> float:
    """1 + a + … + a^g, in the mean."""
    return sum(ACCEPTANCE**i for i in range(drafts + 1))


def seconds(drafts: int) -> float:
    """In the target's passes over one token."""
    return drafts * DRAFT + 1 + GROWTH * drafts


def summands(drafts: int) -> str:
    """1 + 0.8 + 0.8², with dots where there are many."""
    powers = ["1", f"{ACCEPTANCE:g}", *(f"{ACCEPTANCE:g}{'²³⁴⁵⁶⁷⁸'[i]}" for i in range(drafts - 1))]
    powers = powers[: drafts + 1]
    return " + ".join(powers if drafts < 4 else [*powers[:3], "…", powers[-1]])


def draw_round_cost(ax: Axes, drafts: int) -> None:
    bare(ax, 13.2, 4.9)
    for n in range(drafts):
        box(ax, LEFT + UNIT * DRAFT * n, 0.7, UNIT * DRAFT - 0.05, 0.7, ORANGE, f"{DRAFT:g}", 8.5)
    x = LEFT + UNIT * DRAFT * drafts
    width = UNIT * (1 + GROWTH * drafts)
    box(ax, x, 0.7, width - 0.05, 0.7, BLUE, f"{1 + GROWTH * drafts:.2f}" if drafts else "1")
    say(ax, LEFT - 0.2, 1.05, "a round", 9, ha="right")
    count = tokens(drafts)
    words = f"{summands(drafts)} = {count:.2f} tokens in {seconds(drafts):.2f} passes"
    say(ax, LEFT, 0.35, words if drafts else "1 token in 1 pass", 9, ha="left")
    at = LEFT
    for n in range(int(count) + 1):
        part = min(1.0, count - n)
        if part > 0.02:
            words = "1" if part == 1.0 else f"{part:.2f}"
            box(ax, at, 2.4, UNIT * part - 0.05, 0.7, BLUE, words if part > 0.2 else "")
            at += UNIT * part
    say(ax, LEFT - 0.2, 2.75, "target alone", 9, ha="right")
    say(ax, LEFT, 2.05, f"as many tokens in {count:.2f} passes", 9, ha="left")
    arrow(ax, (LEFT, 3.6), (LEFT + 4.9 * UNIT, 3.6))
    words = "time; 1 is the target's pass over one token"
    say(ax, LEFT, 3.95, f"{words}    a = {ACCEPTANCE:g}: how likely a draft is kept", 9, ha="left")
    words = f"orange: c = {DRAFT:g}, a pass of the draft model"
    passed = (
        f"    blue, in a round: v = {1 + GROWTH * drafts:.2f}, the target's pass over all drafts"
    )
    say(ax, LEFT, 4.4, f"{words}{passed}" if drafts else words, 9, ha="left")


def say_round_cost(drafts: int) -> str:
    gain = tokens(drafts) / seconds(drafts)
    count = f"{summands(drafts)} = {tokens(drafts):.2f}" if drafts else "1.00"
    return (
        f"{plural(drafts, 'draft')} a round: {gain:.2f} times as fast. With an acceptance of 0.8 a "
        f"round writes {count} tokens in the mean and takes {seconds(drafts):.2f} "
        "passes of the target: 0.25 for each draft, and a pass over all of them that takes 0.05 "
        "longer for each."
    )


round_cost = Schematic(draw_round_cost, say_round_cost, (9.5, 3.4), {"drafts": (0, 8, 4)})
