# exercise: plan_peak
# says: what all but the last leave plus the largest segment
# adds the largest segment to what all but the last one leave, a closed form for equal segments;
# the text says that at a segment own backward the ones behind it are gone, so a large segment
# in front stands on little.

from typing import NamedTuple


class Segment(NamedTuple):  # as given in the notebook
    start: int
    stop: int
    mode: str  # "none" or "full"


def plan_peak(plan: list[Segment], layers: list) -> float:
    left, whole = [], []
    for segment in plan:
        inside = layers[segment.start : segment.stop]
        whole.append(sum(layer.saved_bytes for layer in inside))
        left.append(inside[0].input_bytes if segment.mode == "full" else whole[-1])
    return sum(left[:-1]) + max(whole)
