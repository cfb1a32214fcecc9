# exercise: plan
# says: changed its input
# what is dropped is marked in a view of `experts`, so the caller's tensor is changed; the
# notebook's layer plans the same choices twice, with 1.25 and dropless, and counts them after
# ("-> order, and the rows": plan returns, it changes nothing).

import math

import torch


def plan(experts, count: int, priority, factor: float | None = None):
    flat = experts.reshape(-1)
    first = priority.flatten().argsort(descending=True, stable=True)
    order = first[flat[first].argsort(stable=True)]
    counts = torch.bincount(flat, minlength=count)
    if factor is not None:
        capacity = math.ceil(factor * len(flat) / count)
        starts = counts.cumsum(0) - counts
        place = torch.arange(len(flat)) - starts[flat[order]]
        flat[order[place >= capacity]] = count  # an expert that does not exist
        order = order[flat[order] < count]
        counts = torch.bincount(flat, minlength=count + 1)[:count]
    return order, counts
