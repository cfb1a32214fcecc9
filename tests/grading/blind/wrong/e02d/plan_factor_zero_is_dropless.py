# exercise: plan
# says: only None drops nothing
# `if factor` takes 0.0 for no factor; only "A `factor` of None drops nothing", with 0 the
# capacity ⌈0 · M·K / E⌉ is 0 and all is dropped.

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
        place = torch.arange(len(flat)) - starts[flat[order]]
        order = order[place < capacity]
        counts = counts.clamp(max=capacity)
    return order, counts
