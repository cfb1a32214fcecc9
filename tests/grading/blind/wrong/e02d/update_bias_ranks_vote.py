# exercise: update_bias
# says: each rank took the sign by its own counts
# every rank compares its own counts with its own mean, and only the signs are summed, a vote;
# the text: "Again, counts of all ranks." Right for one rank.

import torch


def update_bias(group, bias, experts, rate: float) -> None:
    counts = torch.bincount(experts.flatten(), minlength=len(bias)).double()
    vote = group.all_reduce(torch.sign(counts.mean() - counts))
    bias += rate * torch.sign(vote)
