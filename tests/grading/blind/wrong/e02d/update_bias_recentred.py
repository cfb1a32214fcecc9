# exercise: update_bias
# says: then its mean was taken off
# afterwards the bias is shifted to a mean of zero, so an expert with exactly the mean load
# changes too; "goes up by `rate` ..., down if more, unchanged if equal"

import torch


def update_bias(group, bias, experts, rate: float) -> None:
    counts = group.all_reduce(torch.bincount(experts.flatten(), minlength=len(bias)))
    bias += rate * torch.sign(counts.double().mean() - counts)
    bias -= bias.mean()
