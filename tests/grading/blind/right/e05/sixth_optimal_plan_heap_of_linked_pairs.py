# exercise: optimal_plan
# differs: no table, but a heap of partial plans, the cheapest first (Dijkstra). Whoever comes to a
# layer holding no less than one that was there before, and was no dearer, is beaten and dropped;
# the first to reach the end is the answer. Plans are linked pairs.
import heapq
import math
from itertools import accumulate, count


def optimal_plan(layers: list, budget_bytes: float):
    L, order = len(layers), count()
    saved = list(accumulate((x.saved_bytes for x in layers), initial=0))
    least_held = [math.inf] * (L + 1)
    waiting = [(0, 0, next(order), 0, None)]

    def extensions(start, held):
        room = budget_bytes - held
        if layers[start].saved_bytes <= room:
            yield Segment(start, start + 1, "none"), 0, layers[start].saved_bytes
        cost = 0
        for stop in range(start + 1, L + 1):
            cost += layers[stop - 1].cost
            if saved[stop] - saved[start] > room:
                return
            yield Segment(start, stop, "full"), cost, layers[start].input_bytes

    while waiting:
        cost, held, _, at, last = heapq.heappop(waiting)
        if at == L:
            plan = []
            while last is not None:
                last, segment = last
                plan.append(segment)
            return plan[::-1]
        if held >= least_held[at]:
            continue
        least_held[at] = held
        for segment, more, leaves in extensions(at, held):
            entry = cost + more, held + leaves, next(order), segment.stop
            heapq.heappush(waiting, (*entry, (last, segment)))
    raise ValueError("the budget is too small for any plan")
