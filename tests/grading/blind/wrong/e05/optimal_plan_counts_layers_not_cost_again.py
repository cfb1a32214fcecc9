# exercise: optimal_plan
# says: it repeats the fewest layers there can be
# counts a repeated segment as its number of layers; the docstring asks for the plan whose
# repeated layers "cost is least", and layers differ in cost.

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
        for repeated, held, plan in unbeaten(best[start]):
            everything = 0
            for stop in range(start + 1, len(layers) + 1):
                everything += layers[stop - 1].saved_bytes
                if held + everything > budget_bytes:
                    break
                full = [*plan, Segment(start, stop, "full")]
                more = repeated + stop - start
                best[stop].append((more, held + layers[start].input_bytes, full))
                if stop == start + 1:
                    kept = [*plan, Segment(start, stop, "none")]
                    best[stop].append((repeated, held + everything, kept))
    if not best[-1]:
        raise ValueError("no plan fits")
    return unbeaten(best[-1])[0][2]
