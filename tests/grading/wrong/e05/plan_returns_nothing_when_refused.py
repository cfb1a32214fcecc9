# exercise: optimal_plan
# says: raise ValueError

from typing import NamedTuple


class Segment(NamedTuple):
    start: int
    stop: int
    mode: str


def unbeaten(partials):
    kept = []
    for cost, held, plan in sorted(partials, key=lambda partial: partial[:2]):
        if not kept or held < kept[-1][1]:
            kept.append((cost, held, plan))
    return kept


def optimal_plan(layers, budget_bytes):
    best = [[(0, 0, [])], *([] for _ in layers)]
    for start in range(len(layers)):
        for cost, held, plan in unbeaten(best[start]):
            everything = again = 0
            for stop in range(start + 1, len(layers) + 1):
                everything += layers[stop - 1].saved_bytes
                again += layers[stop - 1].cost
                if held + everything > budget_bytes:
                    break
                left = held + layers[start].input_bytes
                longer = [*plan, Segment(start, stop, "full")]
                best[stop].append((cost + again, left, longer))
                if stop == start + 1:
                    kept = [*plan, Segment(start, stop, "none")]
                    best[stop].append((cost, held + everything, kept))
    if not best[-1]:
        return []
    return unbeaten(best[-1])[0][2]
