# exercise: plan
# says: a flip afterwards turns equals round
# sorts ascending and flips for "high to low": of two equal priorities the LATER choice then
# comes first

import math
import torch


def plan(experts, count, priority, factor=None):
    flat = experts.flatten()
    order = priority.flatten().argsort(stable=True).flip(0)
    order = order[flat[order].argsort(stable=True)]
    counts = torch.bincount(flat, minlength=count)
    if factor is not None:
        capacity = math.ceil(factor * flat.numel() / count)
        first = counts.cumsum(0) - counts
        place = torch.arange(len(order)) - first[flat[order]]
        order = order[place < capacity]
        counts = counts.clamp(max=capacity)
    return order, counts
