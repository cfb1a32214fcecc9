# exercise: balance_loss
# says: divide p's sum by the tokens of all ranks
# a rank that has no token takes the mean of nothing, NaN times 0 is NaN; "ranks may have
# different numbers of tokens" and "the shares add up to the loss of one process", so its share
# is 0.

import torch


def balance_loss(group, p, experts) -> torch.Tensor:
    E, K = p.shape[1], experts.shape[1]
    counts = group.all_reduce(torch.bincount(experts.flatten(), minlength=E))
    tokens = counts.sum() / K
    f = counts / counts.sum()
    P = p.mean(0) * (len(p) / tokens)
    return E * (f * P).sum()
