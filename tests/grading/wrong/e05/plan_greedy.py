# exercise: optimal_plan
# says: Weigh every next segment | need room for all that they save | and it was refused

from typing import NamedTuple


class Segment(NamedTuple):
    start: int
    stop: int
    mode: str


def optimal_plan(layers, budget_bytes):
    room, plan = budget_bytes - max(layer.saved_bytes for layer in layers), []
    if room < 0:
        raise ValueError("no plan fits")
    for i, layer in enumerate(layers):
        rest = sum(later.input_bytes for later in layers[i + 1 :])
        fits = layer.saved_bytes + rest <= room
        room -= layer.saved_bytes if fits else layer.input_bytes
        plan.append(Segment(i, i + 1, "none" if fits else "full"))
    return plan
