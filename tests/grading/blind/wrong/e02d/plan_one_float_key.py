# exercise: plan
# says: `order[i]` is the choice in row i
# one sort by `expert - priority` in floating point mixes experts where a priority is 1 or more
# (or below 0), and loses digits, so close priorities become equal: "sorted by expert, in one
# expert from high to low `priority`".

import math

import torch


def plan(experts, count: int, priority, factor: float | None = None):
    flat = experts.flatten()
    order = (flat - priority.flatten()).argsort(stable=True)
    counts = torch.bincount(flat, minlength=count)
    if factor is not None:
        capacity = math.ceil(factor * len(flat) / count)
        starts = counts.cumsum(0) - counts
        place = torch.arange(len(flat)) - starts[flat[order]]
        order = order[place < capacity]
        counts = counts.clamp(max=capacity)
    return order, counts
