# exercise: plan_peak
# says: look for the peak before `held` grows
# at a repeated segment's own backward its first input is counted beside all that its layers
# save, though saved_bytes has "the input included" and only "what the ones before it hold"
# comes on top.

from typing import NamedTuple


class Segment(NamedTuple):
    """Layers start … stop - 1: "none" keeps all they save, "full" an input."""

    start: int
    stop: int
    mode: str  # "none" or "full"


def plan_peak(plan: list[Segment], layers: list) -> float:
    held = peak = 0
    for start, stop, mode in plan:
        everything = sum(layer.saved_bytes for layer in layers[start:stop])
        if mode == "full":
            held += layers[start].input_bytes
            peak = max(peak, held + everything)
        else:
            peak = max(peak, held + everything)
            held += everything
    return peak
