import math

import torch


def plan(experts, count, priority, factor=None):
    """Python's own sort, whose equals keep their order."""
    flat, high = experts.flatten().tolist(), priority.flatten().tolist()
    order, counts = [], [0] * count
    room = len(flat) if factor is None else math.ceil(len(flat) * factor / count)
    for choice in sorted(range(len(flat)), key=lambda c: (flat[c], -high[c])):
        if counts[flat[choice]] < room:
            counts[flat[choice]] += 1
            order.append(choice)
    return torch.tensor(order), torch.tensor(counts)
