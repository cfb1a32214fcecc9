# exercise: optimal_plan
# says: Go on from every unbeaten partial plan
# goes on from the cheapest partial plan alone, which may hold so much that nothing fits behind
# it; the text says "Go on from unbeaten(best[i])", where dearer ones that hold less stay.

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


def optimal_plan(layers: list, budget_bytes: float) -> list[Segment]:
    best = [[] for _ in range(len(layers) + 1)]
    best[0] = [(0, 0, [])]
    for start in range(len(layers)):
        if not best[start]:
            continue
        cost, held, plan = unbeaten(best[start])[0]
        everything = again = 0
        for stop in range(start + 1, len(layers) + 1):
            everything += layers[stop - 1].saved_bytes
            again += layers[stop - 1].cost
            if held + everything > budget_bytes:
                break
            full = [*plan, Segment(start, stop, "full")]
            best[stop].append((cost + again, held + layers[start].input_bytes, full))
            if stop == start + 1:
                kept = [*plan, Segment(start, stop, "none")]
                best[stop].append((cost, held + everything, kept))
    if not best[-1]:
        raise ValueError("no plan fits")
    return unbeaten(best[-1])[0][2]
