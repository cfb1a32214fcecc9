# exercise: balance_loss
# says: K times too small

import torch


def balance_loss(group, p, experts):
    counts = torch.bincount(experts.flatten(), minlength=p.shape[1])
    group.all_reduce(counts)
    f = counts / counts.sum()
    tokens = counts.sum()
    return p.shape[1] * (f * p.sum(0)).sum() / tokens
