# exercise: optimal_plan
# says: repeated ones of any length and kept single layers
# only tries plans that repeat the first layers and keep all the rest, so with unequal layers it
# repeats dear ones; the docstring: "The plan whose repeated layers' `cost` is least, of those
# that fit".

from typing import NamedTuple


class Segment(NamedTuple):
    start: int
    stop: int
    mode: str


def optimal_plan(layers: list, budget_bytes: float) -> list[Segment]:
    count = len(layers)
    # least[i]: the least that a repeated first i layers can hold, and their segments
    least = [(0, [])] + [None] * count
    for start in range(count):
        if least[start] is None:
            continue
        held, plan = least[start]
        everything = 0
        for stop in range(start + 1, count + 1):
            everything += layers[stop - 1].saved_bytes
            if held + everything > budget_bytes:
                break
            left = held + layers[start].input_bytes
            if least[stop] is None or left < least[stop][0]:
                least[stop] = left, [*plan, Segment(start, stop, "full")]
    for border in range(count + 1):
        if least[border] is None:
            continue
        held, plan = least[border]
        if held + sum(layer.saved_bytes for layer in layers[border:]) <= budget_bytes:
            return plan + [Segment(i, i + 1, "none") for i in range(border, count)]
    raise ValueError("no plan fits the budget")
