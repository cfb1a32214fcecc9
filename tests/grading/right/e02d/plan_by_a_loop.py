import math

import torch


def plan(experts, count, priority, factor=None):
    """Expert by expert."""
    flat, score = experts.reshape(-1), priority.reshape(-1)
    most = len(flat) if factor is None else math.ceil(factor * len(flat) / count)
    rows = []
    for e in range(count):
        mine = torch.nonzero(flat == e).squeeze(1)
        rows.append(mine[torch.sort(score[mine], descending=True, stable=True).indices][:most])
    return torch.cat(rows), torch.tensor([len(own) for own in rows])
