# exercise: balance_loss
# says: has a count too, 0: `minlength=E`

import torch


def balance_loss(group, p, experts):
    counts = torch.bincount(experts.flatten())
    group.all_reduce(counts)
    f = counts / counts.sum()
    tokens = counts.sum() / experts.shape[1]
    return p.shape[1] * (f * p.sum(0)).sum() / tokens
