# right: plan_peak by running sums; optimal_plan goes best-first through a heap, so the first plan that is complete is the cheapest, and drops what is beaten when it is taken out
import heapq
from itertools import accumulate, count
from typing import NamedTuple


class Segment(NamedTuple):
    """Layers start … stop - 1: "none" keeps all they save, "full" an input."""

    start: int
    stop: int
    mode: str  # "none" or "full"


def plan_peak(plan: list[Segment], layers: list) -> float:
    everything = [
        sum(layer.saved_bytes for layer in layers[start:stop])
        for start, stop, _ in plan
    ]
    left = [
        layers[segment.start].input_bytes if segment.mode == "full" else saved
        for segment, saved in zip(plan, everything)
    ]
    before = accumulate(left, initial=0)
    return max((b + own for b, own in zip(before, everything)), default=0)


def optimal_plan(layers: list, budget_bytes: float) -> list[Segment]:
    end, tie = len(layers), count()
    queue = [(0, 0, next(tie), 0, ())]  # cost, held, a number for ties, layers done, plan
    least = {}  # layers done -> the fewest bytes held by one that was as cheap
    while queue:
        cost, held, _, start, plan = heapq.heappop(queue)
        if start in least and held >= least[start]:
            continue  # beaten: one that is no dearer holds no more
        least[start] = held
        if start == end:
            return list(plan)
        first, saved, again = layers[start], 0, 0
        for stop in range(start + 1, end + 1):
            saved += layers[stop - 1].saved_bytes
            again += layers[stop - 1].cost
            if held + saved > budget_bytes:
                break
            options = [("full", cost + again, held + first.input_bytes)]
            if stop == start + 1:
                options.append(("none", cost, held + saved))
            for mode, price, bytes_ in options:
                longer = (*plan, Segment(start, stop, mode))
                heapq.heappush(queue, (price, bytes_, next(tie), stop, longer))
    raise ValueError(f"no plan of {end} layers fits {budget_bytes} bytes")
