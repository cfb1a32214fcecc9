# exercise: optimal_plan
# says: Each time it has the lowest peak
# Of the plans that fit it takes the one that needs the least memory, not "whose repeated layers'
# `cost` is least".
from typing import NamedTuple


class Segment(NamedTuple):  # as given in the notebook
    start: int
    stop: int
    mode: str  # "none" or "full"


def unbeaten(partials: list[tuple]) -> list[tuple]:  # as given in the notebook
    kept = []
    for cost, held, plan in sorted(partials, key=lambda partial: partial[:2]):
        if not kept or held < kept[-1][1]:
            kept.append((cost, held, plan))
    return kept


def optimal_plan(layers, budget_bytes):
    best = {0: [(0, 0, [])]}  # peak, held, plan
    for start in range(len(layers)):
        for peak, held, plan in unbeaten(best.get(start, [])):
            saved = 0
            for stop in range(start + 1, len(layers) + 1):
                saved += layers[stop - 1].saved_bytes
                high = max(peak, held + saved)
                full = [*plan, Segment(start, stop, "full")]
                best.setdefault(stop, []).append((high, held + layers[start].input_bytes, full))
                if stop == start + 1:
                    kept = [*plan, Segment(start, stop, "none")]
                    best[stop].append((high, held + saved, kept))
    peak, _, plan = unbeaten(best[len(layers)])[0]
    if peak > budget_bytes:
        raise ValueError("nothing fits")
    return plan
