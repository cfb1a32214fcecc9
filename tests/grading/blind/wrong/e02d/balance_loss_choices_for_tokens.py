# exercise: balance_loss
# says: the tokens, the choices over K
# divides the sum of p by the number of choices M*K, not by the number of tokens M: K times too
# small

import torch


def balance_loss(group, p, experts):
    E = p.shape[1]
    counts = group.all_reduce(torch.bincount(experts.flatten(), minlength=E))
    total = counts.sum()
    f = counts.to(p.dtype) / total
    P = p.sum(0) / total
    return E * (f * P).sum()
