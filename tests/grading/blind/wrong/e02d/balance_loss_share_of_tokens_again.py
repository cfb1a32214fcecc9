# exercise: balance_loss
# says: f is divided by the choices
# f is counts over tokens, K times too large, right only for K = 1; "fᵢ the share of the
# *choices* that expert i got", "Even load: 1"

import torch


def balance_loss(group, p, experts) -> torch.Tensor:
    E = p.shape[1]
    counts = group.all_reduce(torch.bincount(experts.flatten(), minlength=E))
    tokens = counts.sum() / experts.shape[1]
    f = counts / tokens
    return E * (f * p.sum(0)).sum() / tokens
