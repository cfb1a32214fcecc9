# exercise: update_bias
# says: no whole number

import torch


def update_bias(group, bias, experts, rate):
    counts = torch.bincount(experts.flatten(), minlength=len(bias))
    group.all_reduce(counts)
    bias += rate * torch.sign(counts.sum() // len(bias) - counts)
