"""Checkpoint placement: which layers of a chain to recompute, so that it fits and costs least.

A *plan* cuts the chain into segments. A kept segment holds all that its layers save. A recomputed
one holds its input, and all that its layers save while its own backward runs; later segments are
freed by then. With L layers that save A bytes each and take inputs of I bytes:

    keep all            L·A               + 0
    every layer         L·I + A           + L forwards
    every √(L·I/A)-th   2·√(L·A·I)        + L forwards      Chen et al.: O(√L)
    optimal             keeps as many as fit, the most expensive first

Cost of `optimal_plan`: O(L³) steps for equal layers. It is exact for unequal layers too, among the
plans that recompute each layer at most once. Papers: Chen et al. 2016, arXiv 1604.06174;
Jain et al. 2020 (Checkmate), 1910.02653. Lab: e05.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from minitrain.errors import InputError
from minitrain.measure.flops import Recompute


@dataclass(frozen=True)
class Layer:
    """The cost of a layer, in bytes and in any unit of work: seconds, FLOPs."""

    input_bytes: float
    saved_bytes: float  # for backward, its input included
    cost: float  # of its forward
    spared_cost: float = 0.0  # part of `cost` after the last save: not recomputed at the end
    selective_bytes: float = math.inf  # saved under selective recomputation, if supported
    selective_cost: float = 0.0  # and its recomputed cost

    def __post_init__(self) -> None:
        sizes = 0 <= self.input_bytes <= min(self.saved_bytes, self.selective_bytes)
        if not (sizes and 0 <= self.spared_cost <= self.cost and self.selective_cost >= 0):
            raise InputError(
                f"{self}: nothing may be negative, what is saved includes the input, and the cost "
                "what is spared of it"
            )


@dataclass(frozen=True)
class Segment:
    """Layers start, start + 1, …, stop - 1, and how much of them backward recomputes."""

    start: int
    stop: int
    mode: Recompute = "full"


SegmentPlan = tuple[Segment, ...]


def uniform_plan(layers: int, mode: Recompute) -> SegmentPlan:
    """Each layer is its own segment, all with the same mode."""
    return tuple(Segment(i, i + 1, mode) for i in range(layers))


def every_kth_plan(layers: int, k: int) -> SegmentPlan:
    """Layers 0, k, 2k, … are recomputed, each by itself; the others are kept."""
    if k < 1:
        raise InputError(f"every {k}-th block cannot be repeated: give 1 (all), 2, …")
    return tuple(Segment(i, i + 1, "none" if i % k else "full") for i in range(layers))


def sqrt_plan(layers: int, length: int | None = None) -> SegmentPlan:
    """Recomputed segments of `length` layers; default √L, best if a layer saves only its input.

    A layer that saves A/I times as much needs shorter segments: √(L·I/A), but at least 1.
    """
    if layers < 1 or (length is not None and length < 1):
        raise InputError(f"{layers} layers in segments of {length}: both must be 1 or more")
    length = length or round(math.sqrt(layers))
    return tuple(Segment(i, min(i + length, layers)) for i in range(0, layers, length))


@dataclass(frozen=True)
class _Step:
    """A segment's cost: bytes held until its backward, peak bytes during it, work."""

    segment: Segment
    held: float
    most: float
    cost: float


def _step(segment: Segment, layers: Sequence[Layer]) -> _Step:
    inside = layers[segment.start : segment.stop]
    most = sum(layer.saved_bytes for layer in inside)
    if segment.mode == "none":
        return _Step(segment, most, most, 0.0)
    if segment.mode == "selective":
        held = sum(layer.selective_bytes for layer in inside)
        cost = sum(layer.selective_cost for layer in inside)
        return _Step(segment, held, max(held, most), cost)
    cost = sum(layer.cost for layer in inside) - inside[-1].spared_cost
    return _Step(segment, inside[0].input_bytes, most, cost)


def plan_cost(plan: SegmentPlan, layers: Sequence[Layer]) -> float:
    """The recomputed work, in the layers' unit."""
    return sum(_step(segment, layers).cost for segment in plan)


def plan_peak(plan: SegmentPlan, layers: Sequence[Layer]) -> float:
    """The most bytes of activations held at once, in forward or backward."""
    held = peak = 0.0
    for segment in plan:
        step = _step(segment, layers)
        peak = max(peak, held + step.most)  # its backward, when later segments are freed
        held += step.held
    return peak


@dataclass(frozen=True)
class _Partial:
    """A plan of the first layers: bytes held after they ran, and the work to recompute."""

    held: float = 0.0
    cost: float = 0.0
    plan: SegmentPlan = ()

    def then(self, step: _Step) -> _Partial:
        return _Partial(self.held + step.held, self.cost + step.cost, (*self.plan, step.segment))


def optimal_plan(layers: Sequence[Layer], budget_bytes: float) -> SegmentPlan:
    """The plan of least cost whose peak is within the budget.

    Dynamic programming over the number of layers planned: keeps the partial plans that no other one
    beats in both bytes held and cost. That suffices, since whether and how the rest fits depends
    only on the bytes held.
    """
    best: list[list[_Partial]] = [[_Partial()], *([] for _ in layers)]
    for start in range(len(layers)):
        for partial in _unbeaten(best[start]):
            for step in _steps(layers, start, budget_bytes - partial.held):
                best[step.segment.stop].append(partial.then(step))
    if not best[-1]:
        raise InputError(
            f"no plan for these {len(layers)} layers fits {budget_bytes:,.0f} bytes: give "
            f"{least_budget(layers):,} or more, or a smaller batch"
        )
    return _unbeaten(best[-1])[0].plan


def _steps(layers: Sequence[Layer], start: int, room: float) -> Iterator[_Step]:
    """Every possible next segment whose backward fits."""
    for stop in range(start + 1, len(layers) + 1):
        again = _step(Segment(start, stop), layers)
        if not again.most <= room:
            return  # a longer one does not fit either
        yield again
        if stop == start + 1:
            one = [_step(Segment(start, stop, mode), layers) for mode in ("none", "selective")]
            yield from (step for step in one if step.most <= room)


def _unbeaten(partials: list[_Partial]) -> list[_Partial]:
    """The plans that hold less than every cheaper one, cheapest first."""
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
    """Segments hold at least their inputs, so it suffices to check plans that recompute
    everything: `held[i]` is the least sum of such inputs after i layers."""
    held = [0.0] + [math.inf] * len(layers)
    for start, layer in enumerate(layers):
        most = held[start]
        for stop in range(start + 1, len(layers) + 1):
            most += layers[stop - 1].saved_bytes
            if most > budget_bytes:
                break
            held[stop] = min(held[stop], held[start] + layer.input_bytes)
    return held[-1] < math.inf
