# exercise: optimal_plan
# differs: pulls into each stop from all its starts, holds links to the shorter partial plan
# instead of copied lists and unrolls them at the end; a kept layer is a loop of its own; and
# plan_peak pairs each sum with a running total (accumulate)
from itertools import accumulate


def plan_peak(plan: list, layers: list) -> float:
    own, left = [], []
    for segment in plan:
        inside = layers[segment.start : segment.stop]
        own.append(sum(layer.saved_bytes for layer in inside))
        left.append(own[-1] if segment.mode == "none" else inside[0].input_bytes)
    before = accumulate(left, initial=0)
    return max(mine + waiting for mine, waiting in zip(own, before))


def unbeaten(partials: list[tuple]) -> list[tuple]:
    """Given: the cheapest first, each of which holds less than all before."""
    kept = []
    for cost, held, plan in sorted(partials, key=lambda partial: partial[:2]):
        if not kept or held < kept[-1][1]:
            kept.append((cost, held, plan))
    return kept


def optimal_plan(layers: list, budget_bytes: float) -> list:
    best = {0: [(0, 0, None)]}
    for stop in range(1, len(layers) + 1):
        found, own, again = [], 0, 0
        for start in reversed(range(stop)):
            own += layers[start].saved_bytes
            again += layers[start].cost
            if own > budget_bytes:
                break  # a longer segment is larger still
            for partial in best[start]:
                cost, held, _ = partial
                if held + own > budget_bytes:
                    continue
                link = Segment(start, stop, "full"), partial
                found.append((cost + again, held + layers[start].input_bytes, link))
        only = layers[stop - 1].saved_bytes
        for partial in best[stop - 1]:
            cost, held, _ = partial
            if held + only <= budget_bytes:
                link = Segment(stop - 1, stop, "none"), partial
                found.append((cost, held + only, link))
        best[stop] = unbeaten(found)
    if not best[len(layers)]:
        raise ValueError("no plan fits")
    plan, link = [], best[len(layers)][0][2]
    while link is not None:
        segment, (_, _, link) = link
        plan.insert(0, segment)
    return plan
