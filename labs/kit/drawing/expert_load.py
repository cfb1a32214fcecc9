"""Load of the experts in a mixture of experts, and the tokens that a capacity drops.

    show.draw_load([210, 60, 130, 112], factor=1.25)       a measured load
    show.draw_load(skewed_load(1.0), factor=1.25)          a skewed router's load

A bar is an expert: kept tokens filled, dropped ones hatched. The solid line is the capacity, the
dashed one an even load.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING

import torch

from minitrain.lab.drawing.colors import BLUE, INK, ORANGE
from minitrain.lab.drawing.figures import drawing, finish

if TYPE_CHECKING:
    from matplotlib.axes import Axes

HATCHED = {"facecolor": "white", "edgecolor": ORANGE, "hatch": "////", "linewidth": 0.8}
TOKENS, EXPERTS, PER_TOKEN = 512, 8, 2  # of the skewed router
RATE, STEPS = 0.005, 600  # of the bias, until it converges


def draw_load(
    load: Sequence[float], *, factor: float | None = None, ax: Axes | None = None
) -> None:
    """`load[e]` choices of expert e. A capacity is `factor` times an even load; None: no limit."""
    words = summary(load, factor)
    with drawing(ax, f"Bars of the choices that each expert got. {words}", "") as axes:
        places, most = range(len(load)), capacity(load, factor)
        kept = [min(n, most) for n in load]
        axes.bar(places, kept, 0.72, color=BLUE, label="choices" if factor is None else "kept")
        over = [place for place in places if load[place] > most]
        if over:
            dropped = [load[place] - most for place in over]
            axes.bar(over, dropped, 0.72, most, label="dropped", **HATCHED)
        even = sum(load) / len(load)
        axes.axhline(even, color=INK, linewidth=1, linestyle="--", label="even load")
        if factor is not None:
            axes.axhline(most, color=ORANGE, linewidth=1.3, label=f"capacity, {factor:g}x even")
        axes.set_xticks(places)
        axes.grid(axis="x", visible=False)
        finish(axes, "expert", "choices", words)
        axes.set_ylim(0, 1.28 * max(*load, even if factor is None else most))
        axes.legend(loc="upper right", ncols=4, fontsize=8, columnspacing=1.2)


def capacity(load: Sequence[float], factor: float | None) -> float:
    """The most tokens that an expert keeps."""
    return math.inf if factor is None else math.ceil(factor * sum(load) / len(load))


def summary(load: Sequence[float], factor: float | None) -> str:
    """The title and alt text of a load."""
    most, total = capacity(load, factor), max(1, sum(load))
    busiest = f"The busiest expert gets {max(load) * len(load) / total:.1f}x an even load"
    if factor is None:
        return busiest
    dropped = sum(max(0, n - most) for n in load) / total
    return f"{busiest}; {dropped:.0%} is dropped"


@lru_cache
def skewed_load(skew: float, balanced: bool = False) -> tuple[int, ...]:
    """The load of a skewed router: logits are noise plus an offset, from +skew for the favourite
    expert to -skew. `balanced`: with the converged bias of Wang et al. 2024. Nothing is trained."""
    generator = torch.Generator().manual_seed(0)
    noise = torch.randn(TOKENS, EXPERTS, generator=generator)  # (M, E)
    favour = torch.linspace(1, -1, EXPERTS)[torch.randperm(EXPERTS, generator=generator)]
    p = (noise + skew * favour).softmax(dim=-1)
    bias = torch.zeros(EXPERTS)
    for _ in range(STEPS if balanced else 0):
        load = load_of(p + bias)
        bias += RATE * torch.sign(load.double().mean() - load)
    return tuple(load_of(p + bias).tolist())


def load_of(scores: torch.Tensor) -> torch.Tensor:
    """scores (M, E) -> (E,): how often each expert is in a token's top k."""
    return torch.bincount(scores.topk(PER_TOKEN).indices.flatten(), minlength=scores.shape[1])
