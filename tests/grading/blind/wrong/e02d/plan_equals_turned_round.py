# exercise: plan
# says: the earlier choice comes first
# an ascending stable sort, flipped, puts the later of two equal choices first: "where two are
# equal the earlier choice first".

import math

import torch


def plan(experts, count: int, priority, factor: float | None = None):
    flat = experts.flatten()
    first = priority.flatten().argsort(stable=True).flip(0)
    order = first[flat[first].argsort(stable=True)]
    counts = torch.bincount(flat, minlength=count)
    if factor is not None:
        capacity = math.ceil(factor * len(flat) / count)
        starts = counts.cumsum(0) - counts
        place = torch.arange(len(flat)) - starts[flat[order]]
        order = order[place < capacity]
        counts = counts.clamp(max=capacity)
    return order, counts
