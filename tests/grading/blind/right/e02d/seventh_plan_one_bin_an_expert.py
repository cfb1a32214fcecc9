# exercise: plan
# plain Python lists: one bin for each expert, each sorted by priority and cut at the capacity
import math

import torch


def plan(experts, count: int, priority, factor: float | None = None):
    bins = [[] for _ in range(count)]
    for choice, expert in enumerate(experts.flatten().tolist()):
        bins[expert].append(choice)
    wish = priority.flatten().tolist()
    capacity = len(wish)
    if factor is not None:
        capacity = math.ceil(factor * experts.numel() / count)
    # sorted() is stable: of equals the earlier choice stays in front
    kept = [sorted(own, key=lambda c: -wish[c])[:capacity] for own in bins]
    order = torch.tensor([choice for own in kept for choice in own], dtype=torch.long)
    return order, torch.tensor([len(own) for own in kept], dtype=torch.long)
