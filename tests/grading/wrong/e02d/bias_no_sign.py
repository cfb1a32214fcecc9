# exercise: update_bias
# says: take its sign

import torch


def update_bias(group, bias, experts, rate):
    counts = torch.bincount(experts.flatten(), minlength=len(bias))
    group.all_reduce(counts)
    bias += rate * (counts.double().mean() - counts)
