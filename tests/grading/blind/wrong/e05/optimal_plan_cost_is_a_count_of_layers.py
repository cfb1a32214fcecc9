# exercise: optimal_plan
# says: Each time it repeats the fewest layers there can be
# A repeated segment costs its number of layers, not the sum of its layers' own `cost`: right
# only if all layers cost the same.

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
    n = len(layers)
    best = [[] for _ in range(n + 1)]
    best[0] = [(0, 0, [])]
    for i in range(n):
        for cost, held, plan in unbeaten(best[i]):
            own = layers[i].saved_bytes
            if held + own <= budget_bytes:
                best[i + 1].append((cost, held + own, plan + [Segment(i, i + 1, "none")]))
            again = 0
            for j in range(i + 1, n + 1):
                again += layers[j - 1].saved_bytes
                if held + again > budget_bytes:
                    break
                left = held + layers[i].input_bytes
                best[j].append((cost + (j - i), left, plan + [Segment(i, j, "full")]))
    if not best[n]:
        raise ValueError("no plan fits the budget")
    return unbeaten(best[n])[0][2]
