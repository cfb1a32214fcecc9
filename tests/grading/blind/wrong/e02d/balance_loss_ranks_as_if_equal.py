# exercise: balance_loss
# says: Divide p's sum by the tokens of all ranks
# the rank's mean p over the number of ranks is its part only where all have the same number of
# tokens: "ranks may have different numbers of tokens".

import torch


def balance_loss(group, p, experts) -> torch.Tensor:
    E = p.shape[1]
    counts = group.all_reduce(torch.bincount(experts.flatten(), minlength=E))
    f = counts / counts.sum()
    return E * (f * p.mean(0)).sum() / group.size
