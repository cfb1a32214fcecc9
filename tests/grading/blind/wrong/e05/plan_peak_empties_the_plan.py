# exercise: plan_peak
# says: changed its input
# the caller's plan is emptied while it is walked ("Walk the segments"), so asking for the same
# plan's peak again gives 0, and the plan cannot be run afterwards.

from typing import NamedTuple


class Segment(NamedTuple):
    """Layers start … stop - 1: "none" keeps all they save, "full" an input."""

    start: int
    stop: int
    mode: str  # "none" or "full"


def plan_peak(plan: list[Segment], layers: list) -> float:
    held = peak = 0
    while plan:
        segment = plan.pop(0)
        inside = layers[segment.start : segment.stop]
        everything = sum(layer.saved_bytes for layer in inside)
        peak = max(peak, held + everything)
        held += inside[0].input_bytes if segment.mode == "full" else everything
    return peak
