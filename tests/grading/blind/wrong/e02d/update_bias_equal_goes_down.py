# exercise: update_bias
# says: expected
# an expert with exactly the mean load goes down; "unchanged if equal"

import torch


def update_bias(group, bias, experts, rate: float) -> None:
    counts = group.all_reduce(torch.bincount(experts.flatten(), minlength=len(bias)))
    less = counts < counts.double().mean()
    bias += rate * (2 * less.to(bias.dtype) - 1)
