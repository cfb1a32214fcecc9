# right: plans are built from the last layer to the first, by what a tail needs on top of what is held in front of it; the generator is used as an object
from functools import reduce
from typing import NamedTuple

import torch


class Segment(NamedTuple):  # as given in the notebook
    start: int
    stop: int
    mode: str


def unbeaten(partials: list[tuple]) -> list[tuple]:  # as given in the notebook
    kept = []
    for cost, held, plan in sorted(partials, key=lambda partial: partial[:2]):
        if not kept or held < kept[-1][1]:
            kept.append((cost, held, plan))
    return kept


class Replay:
    """A function and where the generator stood when it began."""

    def __init__(self, function):
        self.function, self.state = function, torch.default_generator.get_state()

    def __call__(self, inputs):
        now = torch.default_generator.get_state()
        try:
            torch.default_generator.set_state(self.state)
            with torch.enable_grad():
                return self.function(*inputs)
        finally:
            torch.default_generator.set_state(now)


class Checkpoint(torch.autograd.Function):
    @staticmethod
    def forward(ctx, function, *inputs):
        ctx.replay = Replay(function)
        result = function(*inputs)
        ctx.save_for_backward(*inputs)
        return result

    @staticmethod
    def backward(ctx, gradient):
        fresh = tuple(
            x.detach().requires_grad_() if needed else x.detach()
            for x, needed in zip(ctx.saved_tensors, ctx.needs_input_grad[1:])
        )
        torch.autograd.backward([ctx.replay(fresh)], [gradient])
        return None, *(x.grad for x in fresh)


def plan_peak(plan: list[Segment], layers: list) -> float:
    """From behind: a tail needs its first segment's all, or what that one leaves and the
    need of what follows."""

    def in_front(need, segment):
        inside = layers[segment.start : segment.stop]
        everything = sum(layer.saved_bytes for layer in inside)
        left = everything if segment.mode == "none" else inside[0].input_bytes
        return max(everything, left + need)

    return reduce(in_front, reversed(plan), 0)


def optimal_plan(layers: list, budget_bytes: float) -> list[Segment]:
    """best[i]: plans of layers i and on, as (cost, need, plan)."""
    count = len(layers)
    best = [[] for _ in range(count)] + [[(0, 0, ())]]
    for start in reversed(range(count)):
        first, saved, cost = layers[start], 0, 0
        for stop in range(start + 1, count + 1):
            saved += layers[stop - 1].saved_bytes
            cost += layers[stop - 1].cost
            if saved > budget_bytes:
                break
            for later, need, tail in best[stop]:
                ways = [("full", cost + later, first.input_bytes + need)]
                if stop == start + 1:
                    ways.append(("none", later, saved + need))
                for mode, costs, needs in ways:
                    if needs <= budget_bytes:
                        plan = (Segment(start, stop, mode), *tail)
                        best[start].append((costs, max(saved, needs), plan))
        best[start] = unbeaten(best[start])
    if not best[0]:
        raise ValueError("no plan fits the budget")
    return list(best[0][0][2])
