# exercise: plan_peak
# says: at the last segment's backward
# only the last segment's backward is returned, not the highest of all ("The most bytes held at
# once"): wrong as soon as an earlier segment is the larger one.

from typing import NamedTuple


class Segment(NamedTuple):
    """Layers start … stop - 1: "none" keeps all they save, "full" an input."""

    start: int
    stop: int
    mode: str  # "none" or "full"


def plan_peak(plan: list[Segment], layers: list) -> float:
    held = peak = 0
    for segment in plan:
        inside = layers[segment.start : segment.stop]
        everything = sum(layer.saved_bytes for layer in inside)
        peak = held + everything  # held only grows, so the last is the highest
        held += inside[0].input_bytes if segment.mode == "full" else everything
    return peak
