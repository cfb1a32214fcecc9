# exercise: plan_peak
# says: look for the peak before `held` grows
# at the backward of a repeated segment it adds the held input to all saved bytes; the docstring
# says saved_bytes has "the input included".

from typing import NamedTuple


class Segment(NamedTuple):  # as given in the notebook
    start: int
    stop: int
    mode: str  # "none" or "full"


def plan_peak(plan: list[Segment], layers: list) -> float:
    held = peak = 0
    for segment in plan:
        inside = layers[segment.start : segment.stop]
        everything = sum(layer.saved_bytes for layer in inside)
        if segment.mode == "full":
            held += inside[0].input_bytes
            peak = max(peak, held + everything)
        else:
            held += everything
            peak = max(peak, held)
    return peak
