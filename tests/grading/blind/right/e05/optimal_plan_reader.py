# a reader's answer to `optimal_plan`, in which others made the mistakes of wrong/e05/optimal_plan_reader.diff

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


def optimal_plan(layers: list, budget_bytes: float) -> list[Segment]:
    best = [[] for _ in range(len(layers) + 1)]
    best[0].append((0, 0, []))
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
    if not best[-1]:
        raise ValueError("no plan fits the budget")
    return unbeaten(best[-1])[0][2]
