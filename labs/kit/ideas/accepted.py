"""Where exact verification gets each token's probability from: min(p, q), and (p - q)+."""

from __future__ import annotations

from typing import TYPE_CHECKING

from minitrain.lab.drawing.display import GREEN, ORANGE
from minitrain.lab.drawing.figures import INK, lighter
from minitrain.lab.drawing.shapes import IDLE
from minitrain.lab.ideas.schematic import Schematic

if TYPE_CHECKING:
    from matplotlib.axes import Axes

TOKENS = ["a", "the", "his", "some", "no", "two"]
TARGET = [0.40, 0.25, 0.15, 0.10, 0.06, 0.04]
FAR = [0.10, 0.15, 0.10, 0.05, 0.30, 0.30]  # a draft model that knows little
LIKE = ["25%", "50%", "75%", "100%"]


def draft(like: str) -> list[float]:
    """q: so much of p, the rest of FAR."""
    share = int(like[:-1]) / 100
    return [share * p + (1 - share) * far for p, far in zip(TARGET, FAR)]


def kept(like: str) -> list[float]:
    return [min(p, q) for p, q in zip(TARGET, draft(like))]


def replaced(like: str) -> list[float]:
    return [p - least for p, least in zip(TARGET, kept(like))]


def rejected(like: str) -> list[float]:
    return [q - least for q, least in zip(draft(like), kept(like))]


def draw_kept_mass(ax: Axes, like: str) -> None:
    places = range(len(TOKENS))
    low, rest, q = kept(like), replaced(like), draft(like)
    ax.bar(places, low, 0.6, color=lighter(GREEN, 0.35), label="min(p, q): drafted and kept")
    ax.bar(
        places, rest, 0.6, bottom=low, color=lighter(ORANGE, 0.35), label="(p - q)+: replacements"
    )
    ax.bar(
        places,
        rejected(like),
        0.6,
        bottom=[*TARGET],
        label="(q - p)+: drafted and rejected",
        **IDLE,
    )
    ax.step(
        [place + side for place in places for side in (-0.42, 0.42)],
        [value for value in q for _ in range(2)],
        where="post", color=INK, linewidth=1.4, label="q: what is drafted",
    )  # fmt: skip
    ax.set_xticks(places, TOKENS)
    ax.set(ylabel="probability", ylim=(0, 0.5))
    ax.legend(loc="upper right", title="a whole coloured bar: p", alignment="left")


def say_kept_mass(like: str) -> str:
    most = sum(kept(like))
    return (
        f"Where q is {like} p and {100 - int(like[:-1])}% something else, {100 * most:.0f}% of the "
        "drafts are kept. Each coloured bar is p, the target's probability of a token. Its lower "
        "part, up to q, comes from drafts that are kept; the upper parts, "
        f"{100 * (1 - most):.0f}% in all, from replacements. What q has above a bar, hatched, is "
        "as much: drafted and rejected."
    )


kept_mass = Schematic(draw_kept_mass, say_kept_mass, (8.0, 4.2), {"like": (LIKE, "50%")})
