# exercise: plan
# says: those of highest priority are
# where an expert is full the earliest choices stay and the rest is dropped, then what stayed is
# sorted by priority; "an expert takes ... rows at most, those of highest p"

import math

import torch


def plan(experts, count: int, priority, factor: float | None = None):
    flat = experts.flatten()
    order = flat.argsort(stable=True)
    counts = torch.bincount(flat, minlength=count)
    if factor is not None:
        capacity = math.ceil(factor * len(flat) / count)
        starts = counts.cumsum(0) - counts
        places = torch.arange(len(flat), device=flat.device) - starts[flat[order]]
        order, counts = order[places < capacity], counts.clamp(max=capacity)
    order = order.sort().values
    order = order[priority.flatten()[order].argsort(descending=True, stable=True)]
    order = order[flat[order].argsort(stable=True)]
    return order, counts
