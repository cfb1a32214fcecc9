# exercise: balance_loss
# says: Divide p's sum by the tokens of all ranks
# the share is the mean of this rank's own p divided by the ranks: right only where all ranks
# have as many tokens

import torch


def balance_loss(group, p, experts):
    E = p.shape[1]
    counts = group.all_reduce(torch.bincount(experts.flatten(), minlength=E))
    f = counts.to(p.dtype) / counts.sum()
    return E * (f * p.mean(0)).sum() / group.size
