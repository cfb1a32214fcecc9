# right: fills the table by where a plan stops, prunes each place once, and keeps plans as chains that are unrolled at the end
from typing import NamedTuple


def unbeaten(partials):
    kept = []
    for cost, held, plan in sorted(partials, key=lambda partial: partial[:2]):
        if not kept or held < kept[-1][1]:
            kept.append((cost, held, plan))
    return kept


def optimal_plan(layers, budget_bytes):
    frontier = [[(0, 0, None)]]
    for stop in range(1, len(layers) + 1):
        found = []
        for start in reversed(range(stop)):
            inside = layers[start:stop]
            need = sum(layer.saved_bytes for layer in inside)
            work = sum(layer.cost for layer in inside)
            for cost, held, chain in frontier[start]:
                if held + need > budget_bytes:
                    continue
                full = Segment(start, stop, "full")
                found.append((cost + work, held + inside[0].input_bytes, (chain, full)))
                if len(inside) == 1:
                    kept = Segment(start, stop, "none")
                    found.append((cost, held + need, (chain, kept)))
        frontier.append(unbeaten(found))
    if not frontier[-1]:
        raise ValueError(f"no plan fits into {budget_bytes} bytes")
    chain, plan = frontier[-1][0][2], []
    while chain is not None:
        chain, segment = chain
        plan.append(segment)
    return plan[::-1]
