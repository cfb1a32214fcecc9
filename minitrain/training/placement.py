"""Where to put the checkpoints of a chain of layers, so that it fits and costs least.

A *plan* cuts the chain into segments. One that is kept holds all that its layers save. One that is
repeated holds its input, and all that its layers save while its own backward runs; the segments
behind it are gone by then. With L layers that save A bytes each and take inputs of I bytes:

    keep all       L·A                      +0
    every layer    L·I + A                  + L forwards
    every √(L·A/I)-th   2·√(L·A·I)          + L forwards       Chen et al.: O(√L)
    optimal        as many kept as fit the budget, the dear ones first

Cost of `optimal_plan`: O(L³) steps for equal layers. It is exact for chains of unequal layers too,
among the plans that repeat each layer at most once. Papers: Chen et al. 2016, arXiv 1604.06174;
Jain et al. 2020 (Checkmate), 1910.02653. Lab: e05.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from minitrain.errors import InputError
from minitrain.measure.flops import Recompute


@dataclass(frozen=True)
class Layer:
    """What a layer costs: bytes of its input; bytes it saves for backward, that input included; and
    its forward, in seconds, FLOPs, or any one unit."""

    input_bytes: float
    saved_bytes: float
    cost: float

    def __post_init__(self) -> None:
        if not 0 <= self.input_bytes <= self.saved_bytes or self.cost < 0:
            raise InputError(
                f"a layer with an input of {self.input_bytes} bytes that saves {self.saved_bytes} "
                f"and costs {self.cost}: none may be negative, and what it saves includes its input"
            )


@dataclass(frozen=True)
class Segment:
    """Layers start, start + 1, …, stop - 1, and what of them backward repeats."""

    start: int
    stop: int
    mode: Recompute = "full"


Plan = tuple[Segment, ...]


def uniform_plan(layers: int, mode: Recompute) -> Plan:
    """Every layer by itself, treated alike."""
    return tuple(Segment(i, i + 1, mode) for i in range(layers))


def every_kth_plan(layers: int, k: int) -> Plan:
    """Layers 0, k, 2k, … are repeated, each by itself; the others are kept."""
    if k < 1:
        raise InputError(f"every {k}-th block cannot be repeated: give 1 (all), 2, …")
    return tuple(Segment(i, i + 1, "none" if i % k else "full") for i in range(layers))


def sqrt_plan(layers: int, length: int | None = None) -> Plan:
    """Repeated segments of `length` layers, by default √L: the least of inputs and one segment."""
    if layers < 1 or (length is not None and length < 1):
        raise InputError(f"{layers} layers in segments of {length}: both must be 1 or more")
    length = length or max(1, round(math.sqrt(layers)))
    return tuple(Segment(i, min(i + length, layers)) for i in range(0, layers, length))


def plan_cost(plan: Plan, layers: Sequence[Layer]) -> float:
    """What is computed again, in the layers' unit."""
    return sum(layer.cost for s in plan if s.mode == "full" for layer in layers[s.start : s.stop])


def plan_peak(plan: Plan, layers: Sequence[Layer]) -> float:
    """The most bytes of activations held at once, in forward or backward."""
    held = peak = 0.0
    for segment in plan:
        inside = layers[segment.start : segment.stop]
        saved = sum(layer.saved_bytes for layer in inside)
        peak = max(peak, held + saved)  # its own backward, when those behind it are gone
        held += inside[0].input_bytes if segment.mode == "full" else saved
    return max(peak, held)  # forward's end


@dataclass(frozen=True)
class _Partial:
    """A plan of the first layers: what it holds when they have run, and what it will repeat."""

    held: float
    cost: float
    plan: Plan


def optimal_plan(layers: Sequence[Layer], budget_bytes: float) -> Plan:
    """The plan of least cost whose peak is within the budget.

    From left to right, by the number of layers planned: of all partial plans, keep those that no
    other one beats in both bytes held and cost. That suffices, since whether and how the rest fits
    depends on the bytes held alone.
    """
    saved = list(accumulate((layer.saved_bytes for layer in layers), initial=0))
    best: list[list[_Partial]] = [[] for _ in range(len(layers) + 1)]
    best[0] = [_Partial(0.0, 0.0, ())]
    for start, layer in enumerate(layers):
        best[start] = _unbeaten(best[start])
        for partial in best[start]:
            kept = _extended(partial, start, start + 1, "none", layer.saved_bytes, 0.0)
            best[start + 1] += [kept] if kept.held <= budget_bytes else []
            cost = 0.0
            for stop in range(start + 1, len(layers) + 1):
                cost += layers[stop - 1].cost
                if partial.held + saved[stop] - saved[start] > budget_bytes:
                    break  # its own backward does not fit, nor that of a longer one
                again = _extended(partial, start, stop, "full", layer.input_bytes, cost)
                best[stop].append(again)
    if not best[-1]:
        raise InputError(
            f"no plan for these {len(layers)} layers fits {budget_bytes:,.0f} bytes: give "
            f"{least_budget(layers):,} or more, or a smaller batch"
        )
    return min(best[-1], key=lambda partial: (partial.cost, partial.held)).plan


def _extended(
    partial: _Partial, start: int, stop: int, mode: Recompute, held: float, cost: float
) -> _Partial:
    plan = (*partial.plan, Segment(start, stop, mode))
    return _Partial(partial.held + held, partial.cost + cost, plan)


def _unbeaten(partials: list[_Partial]) -> list[_Partial]:
    """Those that hold less than every cheaper one."""
    least, out = math.inf, []
    for partial in sorted(partials, key=lambda partial: (partial.cost, partial.held)):
        if partial.held < least:
            least = partial.held
            out.append(partial)
    return out


def least_budget(layers: Sequence[Layer]) -> int:
    """The smallest whole budget that any plan fits, by bisection."""
    low, high = 0, math.ceil(sum(layer.saved_bytes for layer in layers))
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if _fits(layers, middle) else (middle + 1, high)
    return high


def _fits(layers: Sequence[Layer], budget_bytes: float) -> bool:
    """Repeating holds less than keeping, so it is enough to look at plans that repeat everything:
    `held[i]` is the least that inputs of segments hold when i layers have run."""
    held = [0.0] + [math.inf] * len(layers)
    for start, layer in enumerate(layers):
        peak = held[start]
        for stop in range(start + 1, len(layers) + 1):
            peak += layers[stop - 1].saved_bytes
            if peak > budget_bytes:
                break
            held[stop] = min(held[stop], held[start] + layer.input_bytes)
    return held[-1] < math.inf
