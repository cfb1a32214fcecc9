"""The optimum is brute force's, the peak is a simulated step's, and the closed forms of the plans."""

from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minitrain.errors import InputError
from minitrain.memory.placement import (
    Layer,
    Segment,
    every_kth_plan,
    least_budget,
    optimal_plan,
    plan_cost,
    plan_peak,
    sqrt_plan,
    uniform_plan,
)

layers_of_any_kind = st.lists(
    st.builds(
        lambda i, more, less, cost, spared, again: Layer(
            i, i + more, cost, min(spared, cost), i + min(more, less), again
        ),
        *(st.integers(0, 9), st.integers(0, 20), st.integers(0, 20)),
        *(st.integers(0, 9), st.integers(0, 3), st.integers(0, 3)),
    ),
    min_size=1,
    max_size=5,
)


def all_plans(count: int):
    """Every way to cut a chain, with every way to treat each segment."""
    for cuts in itertools.product((False, True), repeat=count - 1):
        ends = [0, *(i + 1 for i, cut in enumerate(cuts) if cut), count]
        pairs = list(itertools.pairwise(ends))
        for modes in itertools.product(("none", "selective", "full"), repeat=len(pairs)):
            yield tuple(Segment(*pair, mode) for pair, mode in zip(pairs, modes))


def simulated(plan, layers) -> tuple[float, float]:
    """Peak bytes and repeated cost of one step, run through layer by layer with a list of what is
    held: the same rules, told as a story instead of a formula."""
    held, peak, cost = {}, 0, 0
    for segment in plan:
        for i in range(segment.start, segment.stop):
            first = i == segment.start
            kept = {"none": layers[i].saved_bytes, "selective": layers[i].selective_bytes}
            held[i] = kept.get(segment.mode, layers[i].input_bytes if first else 0)
        peak = max(peak, sum(held.values()))
    for segment in reversed(plan):
        inside = range(segment.start, segment.stop)
        if segment.mode != "none":
            cost += sum(
                layers[i].selective_cost if segment.mode == "selective" else layers[i].cost
                for i in inside
            )
            cost -= layers[segment.stop - 1].spared_cost if segment.mode == "full" else 0
            held.update({i: layers[i].saved_bytes for i in inside})
            peak = max(peak, sum(held.values()))
        for i in inside:
            del held[i]
    return peak, cost


@given(layers=layers_of_any_kind, share=st.floats(0, 1))
@settings(max_examples=60, deadline=None)
def test_the_optimum_is_the_best_of_all_plans(layers, share):
    known = {plan: simulated(plan, layers) for plan in all_plans(len(layers))}
    least = min(peak for peak, _ in known.values())
    budget = least + share * (sum(layer.saved_bytes for layer in layers) - least)
    assert least_budget(layers) == least
    plan = optimal_plan(layers, budget)
    peak, cost = simulated(plan, layers)
    assert peak <= budget
    assert cost == min(cost for peak, cost in known.values() if peak <= budget)
    with pytest.raises(InputError, match=f"give {least:,} or more"):
        optimal_plan(layers, least - 1)


@given(layers=layers_of_any_kind)
@settings(max_examples=20, deadline=None)
def test_peak_and_cost_are_those_of_the_simulated_step(layers):
    for plan in all_plans(len(layers)):
        assert (plan_peak(plan, layers), plan_cost(plan, layers)) == simulated(plan, layers)


def test_plans_in_closed_form():
    count, layer = 16, Layer(1, 5, 1)
    layers = [layer] * count
    assert plan_peak(uniform_plan(count, "none"), layers) == count * 5
    assert plan_peak(uniform_plan(count, "full"), layers) == count - 1 + 5
    assert plan_cost(uniform_plan(count, "full"), layers) == count
    assert plan_peak(sqrt_plan(count), layers) == 3 + 4 * 5
    best = min(plan_peak(sqrt_plan(count, n), layers) for n in range(1, count + 1))
    assert best == pytest.approx(2 * math.sqrt(count * 5 * 1), abs=2)
    assert [s.mode for s in every_kth_plan(5, 2)] == ["full", "none", "full", "none", "full"]
    assert plan_cost(every_kth_plan(count, 4), layers) == 4
    assert every_kth_plan(count, 1) == uniform_plan(count, "full")


def test_40_layers_are_planned():
    """Exponential work would never end."""
    layers = [Layer(1, 20, 1)] * 40
    plan = optimal_plan(layers, 300)
    assert plan_peak(plan, layers) <= 300 < plan_peak(uniform_plan(40, "none"), layers)


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: Layer(5, 4, 1),
        lambda: Layer(-1, 4, 1),
        lambda: Layer(1, 4, 1, spared_cost=2),
        lambda: Layer(3, 4, 1, selective_bytes=2),
        lambda: every_kth_plan(4, 0),
        lambda: sqrt_plan(0),
        lambda: sqrt_plan(4, 0),
    ],
)
def test_what_makes_no_sense_is_refused(wrong):
    with pytest.raises(InputError):
        wrong()
