"""The learning rate over a run: a linear warm-up, then half a cosine down to a floor.

Warm-up: Adam's second moment at first averages few gradients, so its steps are too long; the rate
grows while the average settles. Cosine: long steps cross the valley, short ones descend.
    rate |   /\\__
         |  /    \\_        floor + (peak - floor) (1 + cos(pi t)) / 2,  t from 0 to 1
         | /       \\___
Papers: Loshchilov & Hutter 2017 (arXiv:1608.03983); Goyal et al. 2017 (arXiv:1706.02677). Lab: e01.
"""

from __future__ import annotations

import math

from minitrain.errors import InputError


def warmup_cosine(step: int, total: float, warmup: float, peak: float, floor: float = 0.0) -> float:
    """The rate of step `step` (the first is 0) in a run of `total` steps, `warmup` of them rising.

    The first step already has peak / warmup, not 0; the last of the warm-up has the peak, the last
    of the run is one step short of the floor, and every later one has the floor.
    """
    if not all(value >= 0 for value in (step, total, warmup, peak, floor)):
        raise InputError(
            f"step {step} of {total}, {warmup} of them rising to {peak}, down to {floor}: give "
            "numbers from 0 up"
        )
    if floor > peak:
        raise InputError(f"the floor, {floor}, is above the peak, {peak}: the rate falls to it")
    if step < warmup:
        return peak * min(1.0, (step + 1) / warmup)
    if step >= total:
        return floor
    descended = (step - warmup) / (total - warmup)  # 0 at the end of the warm-up, 1 at the end
    return floor + (peak - floor) * 0.5 * (1.0 + math.cos(math.pi * descended))
