# exercise: plan
# says: sort by priority first | the first tokens were kept

import math

import torch


def plan(experts, count, priority, factor=None):
    flat = experts.flatten()
    first = torch.arange(experts.numel())
    order = first[flat[first].argsort(stable=True)]
    counts = torch.bincount(flat, minlength=count)
    if factor is not None:
        capacity = math.ceil(factor * len(flat) / count)
        starts = counts.cumsum(0) - counts
        place = torch.arange(len(flat)) - starts[flat[order]]
        order = order[place < capacity]
        counts = counts.clamp(max=capacity)
    return order, counts
