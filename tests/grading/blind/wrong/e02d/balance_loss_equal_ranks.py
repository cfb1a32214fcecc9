# exercise: balance_loss
# says: Divide p's sum by the tokens of all ranks
# The share is this rank's own mean probability over the number of ranks: right only where all
# ranks have equally many tokens.

import torch


def balance_loss(group, p, experts) -> torch.Tensor:
    E = p.shape[1]
    counts = group.all_reduce(torch.bincount(experts.flatten(), minlength=E))
    f = counts / counts.sum()
    P = p.sum(0) / max(len(p), 1) / group.size
    return E * (f * P).sum()
