# exercise: balance_loss
# says: K times too large

import torch


def balance_loss(group, p, experts):
    counts = torch.bincount(experts.flatten(), minlength=p.shape[1])
    group.all_reduce(counts)
    f = counts * experts.shape[1] / counts.sum()
    tokens = counts.sum() / experts.shape[1]
    return p.shape[1] * (f * p.sum(0)).sum() / tokens
