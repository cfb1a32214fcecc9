# exercise: optimal_plan
# says: This call alone is right
# the table of partial plans lives outside the function and is never emptied, so a second call
# finds the first call's plans, which may exceed the new budget or belong to other layers ("of
# those that fit; ValueError if none does").

from collections import defaultdict
from typing import NamedTuple


class Segment(NamedTuple):
    """Layers start … stop - 1: "none" keeps all they save, "full" an input."""

    start: int
    stop: int
    mode: str  # "none" or "full"


def unbeaten(partials: list[tuple]) -> list[tuple]:
    """Given: the cheapest first, each of which holds less than all before it."""
    kept = []
    for cost, held, plan in sorted(partials, key=lambda partial: partial[:2]):
        if not kept or held < kept[-1][1]:
            kept.append((cost, held, plan))
    return kept


best = defaultdict(list, {0: [(0, 0, [])]})


def optimal_plan(layers: list, budget_bytes: float) -> list[Segment]:
    for start in range(len(layers)):
        for cost, held, plan in unbeaten(best[start]):
            everything = again = 0
            for stop in range(start + 1, len(layers) + 1):
                everything += layers[stop - 1].saved_bytes
                again += layers[stop - 1].cost
                if held + everything > budget_bytes:
                    break
                less = held + layers[start].input_bytes
                part = Segment(start, stop, "full")
                best[stop].append((cost + again, less, [*plan, part]))
                if stop == start + 1:
                    part = Segment(start, stop, "none")
                    best[stop].append((cost, held + everything, [*plan, part]))
    if not best[len(layers)]:
        raise ValueError("no plan fits the budget")
    return unbeaten(best[len(layers)])[0][2]
