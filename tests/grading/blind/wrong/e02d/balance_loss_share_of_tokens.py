# exercise: balance_loss
# says: f is divided by the choices
# f is the count over the number of tokens, so the loss is K times too large; "fᵢ the share of
# the *choices* that expert i got", and "Even load: 1". Right only for K = 1.

import torch


def balance_loss(group, p, experts) -> torch.Tensor:
    E, K = p.shape[1], experts.shape[1]
    counts = group.all_reduce(torch.bincount(experts.flatten(), minlength=E))
    tokens = counts.sum() / K
    f = counts / tokens
    return E * (f * p.sum(0)).sum() / tokens
