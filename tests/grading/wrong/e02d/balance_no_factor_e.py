# exercise: balance_loss
# says: lacks the factor E

import torch


def balance_loss(group, p, experts):
    counts = torch.bincount(experts.flatten(), minlength=p.shape[1])
    group.all_reduce(counts)
    f = counts / counts.sum()
    tokens = counts.sum() / experts.shape[1]
    return (f * p.sum(0)).sum() / tokens
