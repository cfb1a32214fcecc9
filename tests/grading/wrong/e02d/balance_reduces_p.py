# exercise: balance_loss
# says: p has no gradient

import torch


def balance_loss(group, p, experts):
    counts = torch.bincount(experts.flatten(), minlength=p.shape[1])
    group.all_reduce(counts)
    mean = group.all_reduce(p.detach().sum(0)) / (counts.sum() / experts.shape[1])
    return p.shape[1] * (counts / counts.sum() * mean).sum() / group.size
