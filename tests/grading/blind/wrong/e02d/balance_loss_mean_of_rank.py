# exercise: balance_loss
# says: Divide p's sum by the tokens of all ranks
# P is this rank's own mean over N, right only where all ranks have as many tokens, NaN where
# one has none; "ranks may have different numbers of tokens, one of them none", "the shares add
# up to the loss of one process"

import torch


def balance_loss(group, p, experts) -> torch.Tensor:
    E = p.shape[1]
    counts = group.all_reduce(torch.bincount(experts.flatten(), minlength=E))
    f = counts / counts.sum()
    return E * (f * p.mean(0)).sum() / group.size
