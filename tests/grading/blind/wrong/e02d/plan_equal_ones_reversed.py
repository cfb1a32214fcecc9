# exercise: plan
# says: the earlier choice comes first
# sorts upward and flips, which also turns round choices of equal priority; "where two are equal
# the earlier choice first"

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
        places = torch.arange(len(flat), device=flat.device) - starts[flat[order]]
        order, counts = order[places < capacity], counts.clamp(max=capacity)
    return order, counts
