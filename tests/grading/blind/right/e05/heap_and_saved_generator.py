# right: the generator is put back by hand, the policy is a pattern, the peak a running sum of what is left, the best plan the first to come out of a heap
import heapq
import re
from itertools import accumulate
from typing import NamedTuple

import torch


class Segment(NamedTuple):  # as given in the notebook
    start: int
    stop: int
    mode: str


class Checkpoint(torch.autograd.Function):
    @staticmethod
    def forward(ctx, function, *inputs):
        ctx.save_for_backward(*inputs)
        ctx.call = function, torch.get_rng_state()
        return function(*inputs)

    @staticmethod
    def backward(ctx, gradient):
        function, then = ctx.call
        leaves = []
        for x, wanted in zip(ctx.saved_tensors, ctx.needs_input_grad[1:]):
            leaf = x.detach()
            if wanted:
                leaf.requires_grad_()
            leaves.append(leaf)
        now = torch.get_rng_state()
        torch.set_rng_state(then)
        try:
            with torch.enable_grad():
                again = function(*leaves)
        finally:
            torch.set_rng_state(now)
        again.backward(gradient)
        return (None, *[leaf.grad for leaf in leaves])


def keep(op: torch._ops.OpOverload) -> bool:
    name = op.overloadpacket.__name__
    return re.fullmatch(r"(add)?mm|_scaled_dot_product_.*", name) is not None


def plan_peak(plan: list[Segment], layers: list) -> float:
    own = [sum(x.saved_bytes for x in layers[a:b]) for a, b, _ in plan]
    left = [
        bytes_ if segment.mode == "none" else layers[segment.start].input_bytes
        for segment, bytes_ in zip(plan, own)
    ]
    return max(before + mine for before, mine in zip(accumulate(left, initial=0), own))


def optimal_plan(layers: list, budget_bytes: float) -> list[Segment]:
    """The cheapest partial plan first; one that reaches a place after a cheaper one must hold
    less there, or it is beaten. The first that reaches the end is the best."""
    least = [float("inf")] * (len(layers) + 1)  # held by those that went on from here
    waiting, number = [(0, 0, 0, 0, ())], 0
    while waiting:
        cost, held, _, start, plan = heapq.heappop(waiting)
        if start == len(layers):
            return list(plan)
        if held >= least[start]:
            continue
        least[start] = held
        saved = again = 0
        for stop in range(start + 1, len(layers) + 1):
            saved += layers[stop - 1].saved_bytes
            again += layers[stop - 1].cost
            if held + saved > budget_bytes:
                break
            ways = [("full", cost + again, held + layers[start].input_bytes)]
            if stop == start + 1:
                ways.append(("none", cost, held + saved))
            for mode, costs, holds in ways:
                number += 1
                longer = (*plan, Segment(start, stop, mode))
                heapq.heappush(waiting, (costs, holds, number, stop, longer))
    raise ValueError("no plan fits the budget")
