# exercise: plan
# says: its capacity is | order has | drop its overflow

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
        place = torch.arange(len(flat)) / count
        order = order[place < capacity]
        counts = torch.bincount(flat[order], minlength=count)
    return order, counts
