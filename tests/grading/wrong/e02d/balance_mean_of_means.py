# exercise: balance_loss
# says: a rank with few tokens counts too much

import torch


def balance_loss(group, p, experts):
    counts = torch.bincount(experts.flatten(), minlength=p.shape[1])
    group.all_reduce(counts)
    f = counts / counts.sum()
    return p.shape[1] * (f * p.mean(0)).sum() / group.size
