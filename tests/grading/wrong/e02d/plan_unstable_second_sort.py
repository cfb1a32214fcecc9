# exercise: plan
# says: rows of one expert stand together | the choice in each row | each choice once

import math

import torch


def plan(experts, count, priority, factor=None):
    flat = experts.flatten()
    first = priority.flatten().argsort(descending=True, stable=True)
    order = first
    counts = torch.bincount(flat, minlength=count)
    if factor is not None:
        capacity = math.ceil(factor * len(flat) / count)
        starts = counts.cumsum(0) - counts
        place = torch.arange(len(flat)) - starts[flat[order]]
        order = order[place < capacity]
        counts = counts.clamp(max=capacity)
    return order, counts
