# right: a loop over the experts, each with its own list of choices, sorted by Python
import math
import torch


def plan(experts, count, priority, factor=None):
    chosen, wish = experts.reshape(-1).tolist(), priority.reshape(-1).tolist()
    room = len(chosen) if factor is None else math.ceil(factor * len(chosen) / count)
    order, counts = [], []
    for expert in range(count):
        mine = [c for c, e in enumerate(chosen) if e == expert]
        mine = sorted(mine, key=lambda c: (-wish[c], c))[:room]
        order += mine
        counts.append(len(mine))
    return torch.tensor(order, dtype=torch.int64), torch.tensor(counts, dtype=torch.int64)
