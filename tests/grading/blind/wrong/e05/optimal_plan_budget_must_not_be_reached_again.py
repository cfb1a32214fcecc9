# exercise: optimal_plan
# says: what needs exactly the budget fits
# a segment that fills the budget exactly is refused (>= instead of >)

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
                if held + saved >= budget_bytes:
                    break
                after = held + layers[start].input_bytes
                full = [*plan, Segment(start, stop, "full")]
                best[stop].append((cost + again, after, full))
                if stop == start + 1:
                    kept = [*plan, Segment(start, stop, "none")]
                    best[stop].append((cost, held + saved, kept))
    if not best[-1]:
        raise ValueError("nothing fits")
    return unbeaten(best[-1])[0][2]
