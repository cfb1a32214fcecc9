# exercise: optimal_plan
# says: Is one list shared by several plans?
# appends the segment to the partial plan's own list, which all its extensions then share

from typing import NamedTuple


def unbeaten(partials):
    kept = []
    for cost, held, plan in sorted(partials, key=lambda partial: partial[:2]):
        if not kept or held < kept[-1][1]:
            kept.append((cost, held, plan))
    return kept


def optimal_plan(layers, budget_bytes):
    best = [[] for _ in range(len(layers) + 1)]
    best[0] = [(0, 0, [])]
    for start in range(len(layers)):
        for cost, held, plan in unbeaten(best[start]):
            saved, again = 0, 0
            for stop in range(start + 1, len(layers) + 1):
                saved += layers[stop - 1].saved_bytes
                again += layers[stop - 1].cost
                if held + saved > budget_bytes:
                    break
                if stop == start + 1:
                    plan.append(Segment(start, stop, "none"))
                    best[stop].append((cost, held + saved, plan))
                plan.append(Segment(start, stop, "full"))
                after = held + layers[start].input_bytes
                best[stop].append((cost + again, after, plan))
    if not best[-1]:
        raise ValueError("nothing fits")
    return unbeaten(best[-1])[0][2]
