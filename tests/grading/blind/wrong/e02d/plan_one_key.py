# exercise: plan
# says: `order[i]` is the choice in row i
# sorts once by expert minus priority, which mixes experts up where a priority is not from 0 to
# 1; "`priority` may be any number"

import math

import torch


def plan(experts, count: int, priority, factor: float | None = None):
    flat = experts.flatten()
    key = flat.double() - priority.flatten().double()
    order = key.argsort(stable=True)
    counts = torch.bincount(flat, minlength=count)
    if factor is not None:
        capacity = math.ceil(factor * len(flat) / count)
        starts = counts.cumsum(0) - counts
        places = torch.arange(len(flat), device=flat.device) - starts[flat[order]]
        order, counts = order[places < capacity], counts.clamp(max=capacity)
    return order, counts
