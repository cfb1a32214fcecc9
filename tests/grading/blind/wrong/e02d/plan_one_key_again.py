# exercise: plan
# says: rows of one expert stand together
# one sort by the key expert - priority: right for priorities between 0 and 1 only, others mix
# the experts

import math
import torch


def plan(experts, count, priority, factor=None):
    flat = experts.flatten()
    order = (flat - priority.flatten()).argsort(stable=True)
    counts = torch.bincount(flat, minlength=count)
    if factor is not None:
        capacity = math.ceil(factor * flat.numel() / count)
        first = counts.cumsum(0) - counts
        place = torch.arange(len(order)) - first[flat[order]]
        order = order[place < capacity]
        counts = counts.clamp(max=capacity)
    return order, counts
