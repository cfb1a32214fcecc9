# exercise: balance_loss
# says: another loss for each cut | f counts the choices of all ranks

import torch


def balance_loss(group, p, experts):
    counts = torch.bincount(experts.flatten(), minlength=p.shape[1])
    f = counts / counts.sum()
    tokens = counts.sum() / experts.shape[1]
    return p.shape[1] * (f * p.sum(0)).sum() / tokens
