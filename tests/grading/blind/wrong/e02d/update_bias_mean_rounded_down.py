# exercise: update_bias
# says: `counts.double().mean()`
# the mean is rounded down, so experts just below a broken mean count as equal; "goes up by
# `rate` if it got less than the mean", which need not be a whole number

import torch


def update_bias(group, bias, experts, rate: float) -> None:
    E = len(bias)
    counts = group.all_reduce(torch.bincount(experts.flatten(), minlength=E))
    mean = counts.sum() // E
    bias += rate * torch.sign(mean - counts).to(bias.dtype)
