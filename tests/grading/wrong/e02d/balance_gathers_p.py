# exercise: balance_loss
# says: one all-reduce of the counts says all | only E counts travel

import torch


def balance_loss(group, p, experts):
    counts = torch.bincount(experts.flatten(), minlength=p.shape[1])
    group.all_reduce(counts)
    group.all_reduce(p.detach().sum(0))
    f = counts / counts.sum()
    tokens = counts.sum() / experts.shape[1]
    return p.shape[1] * (f * p.sum(0)).sum() / tokens
