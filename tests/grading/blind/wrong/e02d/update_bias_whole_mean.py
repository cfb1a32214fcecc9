# exercise: update_bias
# says: `counts.double().mean()`
# the mean is rounded down to a whole number, so with 5 choices on two experts, 2 and 3, the
# first stays and the second goes down: "goes up by `rate` if it got less than the mean".

import torch


def update_bias(group, bias, experts, rate: float) -> None:
    counts = torch.bincount(experts.flatten(), minlength=len(bias))
    counts = group.all_reduce(counts)
    mean = counts.sum() // len(bias)
    bias += rate * torch.sign((mean - counts).double())
