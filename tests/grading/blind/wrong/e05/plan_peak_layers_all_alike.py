# exercise: plan_peak
# says: a segment's layers were all like its first
# multiplies the saved bytes of a segment first layer by its number of layers; the docstring
# says "Each layer has its own input_bytes, and saved_bytes".

from typing import NamedTuple


class Segment(NamedTuple):  # as given in the notebook
    start: int
    stop: int
    mode: str  # "none" or "full"


def plan_peak(plan: list[Segment], layers: list) -> float:
    held = peak = 0
    for start, stop, mode in plan:
        everything = (stop - start) * layers[start].saved_bytes
        peak = max(peak, held + everything)
        held += layers[start].input_bytes if mode == "full" else everything
    return peak
