# exercise: balance_loss
# says: deadlock
# a rank without tokens returns before the all-reduce, for which the others wait; "ranks may
# have different numbers of tokens, one of them none", f counts all ranks' tokens

import torch


def balance_loss(group, p, experts) -> torch.Tensor:
    if len(p) == 0:
        return p.sum()
    E = p.shape[1]
    counts = group.all_reduce(torch.bincount(experts.flatten(), minlength=E))
    f = counts / counts.sum()
    tokens = counts.sum() / experts.shape[1]
    return E * (f * p.sum(0)).sum() / tokens
