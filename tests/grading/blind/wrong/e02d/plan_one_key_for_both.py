# exercise: plan
# says: `order[i]` is the choice in row i
# sorts once by expert minus priority, which mixes experts up as soon as a priority lies outside
# 0 to 1; the docstring: "`priority` may be any number", rows are "sorted by expert".

import math

import torch


def plan(experts, count: int, priority, factor: float | None = None):
    flat = experts.flatten()
    key = flat.double() - priority.flatten().double()
    order = key.argsort(stable=True)
    counts = torch.bincount(flat, minlength=count)
    if factor is not None:
        capacity = math.ceil(factor * flat.numel() / count)
        starts = counts.cumsum(0) - counts
        place = torch.arange(len(flat), device=flat.device) - starts[flat[order]]
        order = order[place < capacity]
        counts = counts.clamp(max=capacity)
    return order, counts
