# exercise: balance_loss
# says: or by the ranks' mean: divide p's sum by the tokens of all ranks
# the counts are averaged over the ranks: f is the same, and the tokens are too few, the mean of
# the ranks' tokens; "with M_all the tokens of all ranks"
import torch


def balance_loss(group, p, experts) -> torch.Tensor:
    E, K = p.shape[1], experts.shape[1]
    counts = torch.bincount(experts.flatten(), minlength=E).double()
    group.all_reduce(counts)
    counts = counts / group.size
    f, tokens = counts / counts.sum(), counts.sum() / K
    return E * (f * p.sum(0)).sum() / tokens
