"""Schematics of lab e13, alignment."""

from __future__ import annotations

import math

from matplotlib.axes import Axes

from minitrain.lab.drawing.colors import BLUE, GREEN, ORANGE, lighter
from minitrain.lab.drawing.shapes import bare, box, write
from minitrain.lab.ideas.schematic import schematic

ANSWERS = {  # probability under the reference, reward
    "a loaf": (0.40, 0.0),
    "a cup": (0.25, 1.0),
    "nothing": (0.15, 0.5),
    "a lamp": (0.12, 2.0),
    "a drum": (0.08, 3.0),
}
FLOOR, TALLEST = 3.6, 2.7
CLIP, LOW, HIGH = 0.2, 0.0, 4.0
DELTAS = (0.2, 0.5, -0.3, 0.1, 0.4, 0.9)  # one a token; the fourth is a tool's


def tilted(beta: float) -> list[float]:
    """pi* of each answer."""
    weights = [p * math.exp(reward / beta) for p, reward in ANSWERS.values()]
    return [weight / sum(weights) for weight in weights]


def spent(beta: float) -> tuple[float, float]:
    """Its mean reward and KL."""
    best, given = tilted(beta), ANSWERS.values()
    reward = sum(p * r for p, (_, r) in zip(best, given))
    return reward, sum(p * math.log(p / q) for p, (q, _) in zip(best, given))


def alt_tilted_policy(beta: float) -> str:
    reward, kl = spent(beta)
    shares = ", ".join(f"{name} {p:.0%}" for name, p in zip(ANSWERS, tilted(beta)))
    return f"""At price β = {beta:g} the best policy earns {reward:.2f} for {kl:.2f} nats. Each
    probability of the reference is multiplied by exp(r/β), and all are divided by their sum:
    {shares}."""


@schematic(alt_tilted_policy, 9.5, 3.9, beta=([0.25, 0.5, 1, 2, 8], 1))
def tilted_policy(ax: Axes, beta: float) -> None:
    """Five answers, their probability under the reference, their reward, and the best policy."""
    bare(ax, 11, 4.9)
    write(ax, 0.2, 0.3, "grey: reference    blue: best policy", ha="left")
    for number, ((name, (p, reward)), best) in enumerate(zip(ANSWERS.items(), tilted(beta))):
        x = 0.4 + 2.1 * number
        for left, height, color in ((x, p, "#bbbbbb"), (x + 0.75, best, BLUE)):
            box(ax, left, FLOOR - TALLEST * height, 0.7, TALLEST * height, color)
            write(ax, left + 0.35, FLOOR - TALLEST * height - 0.16, f"{height:.0%}", 8.5)
        write(ax, x + 0.72, FLOOR + 0.28, name, 9.5)
        write(ax, x + 0.72, FLOOR + 0.68, f"reward {reward:g}", 8.5)
        write(ax, x + 0.72, FLOOR + 1.03, f"times {math.exp(reward / beta):,.1f}", 8.5)


def loss(ratio: float, advantage: int, dual: str) -> float:
    """Of a token with advantage 1 or -1."""
    near = min(max(ratio, 1 - CLIP), 1 + CLIP)
    found = max(-ratio * advantage, -near * advantage)
    return min(found, 3.0) if advantage < 0 and dual == "c = 3" else found


def flat(advantage: int, dual: str) -> str:
    if advantage > 0:
        return f"above {1 + CLIP:g}"
    return f"below {1 - CLIP:g}" + (" and above 3" if dual == "c = 3" else "")


def alt_clipped_loss(dual: str) -> str:
    return f"""The clipped loss, dual clip {dual}: flat where a token has moved far enough. A good
    token's loss is flat {flat(1, dual)}, a bad token's {flat(-1, dual)}; elsewhere the slope is
    minus the advantage."""


@schematic(alt_clipped_loss, 9.5, 3.9, dual=["off", "c = 3"])
def clipped_loss(ax: Axes, dual: str) -> None:
    """The loss of one token by its ratio, for both signs of its advantage."""
    bare(ax, 11, 4.8)
    ratios = [LOW + (HIGH - LOW) * i / 200 for i in range(201)]
    words = {1: "A = 1, a good token", -1: "A = −1, a bad token"}
    for advantage, left, color in ((1, 0.7, GREEN), (-1, 6.2, ORANGE)):
        losses = [loss(ratio, advantage, dual) for ratio in ratios]
        scale, middle = (1.6, 1.2) if advantage > 0 else (0.7, 3.6)

        def at(ratio, value, left=left, scale=scale, middle=middle):
            return left + ratio, middle - scale * value

        ax.plot(*zip(*(at(r, v) for r, v in zip(ratios, losses))), color=color, linewidth=2.6)
        for ratio in (1 - CLIP, 1, 1 + CLIP):
            ax.plot(*zip(at(ratio, losses[0]), (left + ratio, 3.7)), ":", color="#999999")
        ax.plot([left, left + HIGH], [3.7, 3.7], color="#666666")
        for ratio in (0, 1, 2, 3, 4):
            write(ax, left + ratio, 3.95, f"{ratio}", 8.5)
        write(ax, left + 2, 4.4, "ratio ρ of new to old probability", 9)
        title = f"{words[advantage]}: flat {flat(advantage, dual)}"
        write(ax, left + 2, 0.35, title, 9.5)


def weights(lam: float, token: int) -> list[float]:
    """The share of each token's delta in the advantage of `token`; the tool's has none."""
    counted = [t for t in range(len(DELTAS)) if t != 3]
    if token not in counted:
        return [0.0] * len(DELTAS)
    start = counted.index(token)
    later = {t: lam**k for k, t in enumerate(counted[start:])}
    return [later.get(t, 0.0) for t in range(len(DELTAS))]


def advantage(lam: float, token: int) -> float:
    return sum(w * delta for w, delta in zip(weights(lam, token), DELTAS))


def alt_credit(lam: float, token: int) -> str:
    each = ", ".join(f"{w:.2f}" for w in weights(lam, token))
    return f"""λ = {lam:g}: the advantage of token {token} is {advantage(lam, token):.2f}. It adds
    up the deltas from there on, with weights {each}. Token 3 is a tool's: it has no advantage, and
    the weights pass through it undiminished."""


@schematic(alt_credit, 9.5, 3.3, lam=([0, 0.5, 0.8, 0.95, 1], 0.8), token=(0, 5, 1))
def credit(ax: Axes, lam: float, token: int) -> None:
    """GAE's weights: how much of each later delta belongs to one token."""
    bare(ax, 11, 4.1)
    for t, (w, delta) in enumerate(zip(weights(lam, token), DELTAS)):
        x = 0.3 + 1.75 * t
        own = "tool" if t == 3 else "token"
        box(ax, x, 0.5, 1.5, 0.7, lighter(BLUE, 1 - 0.9 * w), f"{own} {t}", 9, edgecolor="#bbbbbb")
        write(ax, x + 0.75, 1.55, f"δ = {delta:+.1f}", 9)
        write(ax, x + 0.75, 2.0, f"weight {w:.2f}", 9)
    found = f"advantage of token {token}: {advantage(lam, token):.2f}"
    write(ax, 0.3, 2.75, found, 11, ha="left", fontweight="bold")
    words = "δ: how much better things look after a token than before it"
    write(ax, 0.3, 3.25, words, 9, ha="left")
    words = "the deeper the blue, the more of this token's δ is counted"
    write(ax, 0.3, 3.65, words, 9, ha="left")
