# exercise: plan
# says: each choice once | the experts of the rows are

import math

import torch


def plan(experts, count, priority, factor=None):
    flat = experts.flatten()
    first = priority.flatten().argsort(descending=True, stable=True)
    order = first[flat[first].argsort(stable=True)]
    counts = torch.bincount(flat, minlength=count)
    if factor is not None:
        capacity = math.ceil(factor * len(flat) / count)
        starts = counts.cumsum(0) - counts
        place = torch.arange(len(flat)) - starts[flat[order]]
        order = order[place < capacity]
        counts = counts.clamp(max=capacity)
    return order.argsort(), counts
