# exercise: update_bias
# says: then its mean was taken off
# after the step the mean is taken from the bias to keep it around zero, which moves also
# experts with the mean load: "unchanged if equal", and up or down "by `rate`".

import torch


def update_bias(group, bias, experts, rate: float) -> None:
    counts = torch.bincount(experts.flatten(), minlength=len(bias))
    counts = group.all_reduce(counts).double()
    bias += rate * torch.sign(counts.mean() - counts)
    bias -= bias.mean()
