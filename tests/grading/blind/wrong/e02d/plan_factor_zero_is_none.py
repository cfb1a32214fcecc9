# exercise: plan
# says: only None drops nothing
# `if factor` takes 0.0 for None and drops nothing; "A `factor` of None drops nothing, 0.0 all"

import math

import torch


def plan(experts, count: int, priority, factor: float | None = None):
    flat = experts.flatten()
    first = priority.flatten().argsort(descending=True, stable=True)
    order = first[flat[first].argsort(stable=True)]
    counts = torch.bincount(flat, minlength=count)
    if factor:
        capacity = math.ceil(factor * len(flat) / count)
        starts = counts.cumsum(0) - counts
        places = torch.arange(len(flat), device=flat.device) - starts[flat[order]]
        order, counts = order[places < capacity], counts.clamp(max=capacity)
    return order, counts
