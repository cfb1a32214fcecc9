"""MinHash: four hash functions order the shingles of two pages, each keeps its smallest.

The functions are h(x) = (a x + b) mod 17, permutations of 0 to 16 as the real ones are of 2^32.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from minitrain.lab.drawing.display import BLUE, GREEN, ORANGE
from minitrain.lab.drawing.figures import lighter
from minitrain.lab.drawing.shapes import bare, box, say
from minitrain.lab.ideas.schematic import Schematic

if TYPE_CHECKING:
    from matplotlib.axes import Axes

ONE = {"the cat sat": 2, "cat sat on": 5, "sat on a": 9, "on a mat": 14}
OTHER = {"the cat sat": 2, "cat sat on": 5, "sat on the": 11, "on the mat": 16}
FUNCTIONS = ((3, 4), (7, 1), (5, 12), (11, 8))
MODULUS = 17
LEFT, WIDE, HIGH = 2.1, 1.5, 0.46


def value(function: int, x: int) -> int:
    a, b = FUNCTIONS[function]
    return (a * x + b) % MODULUS


def signature(page: dict[str, int], count: int) -> list[int]:
    return [min(value(k, x) for x in page.values()) for k in range(count)]


def similarity() -> float:
    """Jaccard's, of the two pages."""
    return len(ONE.keys() & OTHER.keys()) / len(ONE.keys() | OTHER.keys())


def draw_smallest(ax: Axes, hashes: int) -> None:
    bare(ax, 11.6, 6.3)
    same = [a == b for a, b in zip(signature(ONE, hashes), signature(OTHER, hashes))]
    for number, page in enumerate((ONE, OTHER)):
        top = 0.75 + 2.7 * number
        say(ax, 0.1, top - 0.3, f"page {number + 1}", 9, ha="left", fontweight="bold")
        for k in range(hashes):
            if not number:
                words = f"{FUNCTIONS[k][0]}x + {FUNCTIONS[k][1]}"
                say(ax, LEFT + WIDE * (k + 0.45), top - 0.3, words, 9)
        for row, (shingle, x) in enumerate(page.items()):
            y = top + HIGH * row
            shared = shingle in ONE and shingle in OTHER
            style = {"fontweight": "bold"} if shared else {}
            say(ax, LEFT - 0.2, y + 0.2, f"{shingle}   {x}", 8.5, ha="right", **style)
            for k in range(hashes):
                is_least = value(k, x) == signature(page, hashes)[k]
                color = ORANGE if is_least else lighter(BLUE, 0.85)
                box(ax, LEFT + WIDE * k, y, WIDE * 0.9, HIGH - 0.06, color, str(value(k, x)), 9)
    say(ax, LEFT - 0.2, 0.45, "shingle   x", 9, ha="right")
    for k, agree in enumerate(same):
        words = "agree" if agree else "differ"
        color = lighter(GREEN, 0.4) if agree else "white"
        box(ax, LEFT + WIDE * k, 5.75, WIDE * 0.9, 0.42, color, words, 9, edgecolor="#cccccc")
    words = f"x: a shingle as a number\neach hash: a x + b mod {MODULUS}\n\n"
    words += "orange: the smallest,\nall that is kept\n\nbold: in both pages"
    say(ax, 8.4, 1.85, words, 9, ha="left")
    words = f"share that agree: {sum(same)} of {hashes}\nJaccard similarity: 2 of 6"
    say(ax, 8.4, 5.7, words, 9, ha="left")


def say_smallest(hashes: int) -> str:
    one, other = signature(ONE, hashes), signature(OTHER, hashes)
    same = sum(a == b for a, b in zip(one, other))
    return (
        f"Two pages of four shingles through {hashes} hash functions, a x + b mod {MODULUS}: "
        f"{same} of {hashes} smallest values agree. Two of six shingles are in both pages, a "
        f"similarity of {similarity():.2f}. The signatures are {one} and {other}: where they "
        "agree, the smallest shingle is in both."
    )


smallest_values = Schematic(
    draw_smallest, say_smallest, (9.5, 4.6), {"hashes": (1, len(FUNCTIONS), len(FUNCTIONS))}
)
