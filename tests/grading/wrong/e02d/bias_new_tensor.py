# exercise: update_bias
# says: write into it

import torch


def update_bias(group, bias, experts, rate):
    counts = torch.bincount(experts.flatten(), minlength=len(bias))
    group.all_reduce(counts)
    bias = bias + rate * torch.sign(counts.double().mean() - counts)
