# exercise: plan
# says: those of highest priority are
# a full expert keeps the choices with the lowest numbers, which are only afterwards sorted by
# priority: it takes ⌈factor · M·K / E⌉ rows at most, "those of highest p".

import math

import torch


def plan(experts, count: int, priority, factor: float | None = None):
    flat, score = experts.flatten(), priority.flatten()
    kept = torch.arange(len(flat))
    if factor is not None:
        capacity = math.ceil(factor * len(flat) / count)
        seen = torch.nn.functional.one_hot(flat, count).cumsum(0)
        place = seen.gather(1, flat[:, None]).flatten() - 1
        kept = kept[place < capacity]
    first = kept[score[kept].argsort(descending=True, stable=True)]
    order = first[flat[first].argsort(stable=True)]
    return order, torch.bincount(flat[kept], minlength=count)
