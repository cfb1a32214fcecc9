# exercise: plan
# says: counts are those of the *kept* rows
# The counts returned are those of what was asked for, not of the rows that are kept.

import math

import torch


def plan(experts, count: int, priority, factor: float | None = None):
    flat = experts.flatten()
    order = priority.flatten().argsort(descending=True, stable=True)
    order = order[flat[order].argsort(stable=True)]
    counts = torch.bincount(flat, minlength=count)
    if factor is not None:
        capacity = math.ceil(factor * flat.numel() / count)
        groups = order.split(counts.tolist())
        order = torch.cat([rows[:capacity] for rows in groups])
    return order, counts
