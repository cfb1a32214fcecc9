# exercise: balance_loss
# says: f is divided by the choices
# The number of tokens of all ranks is taken to be the sum of the counts, which is K times as
# many.

import torch


def balance_loss(group, p, experts) -> torch.Tensor:
    E = p.shape[1]
    counts = group.all_reduce(torch.bincount(experts.flatten(), minlength=E))
    total = counts.sum()
    return E * ((counts / total) * (p.sum(0) / total)).sum()
