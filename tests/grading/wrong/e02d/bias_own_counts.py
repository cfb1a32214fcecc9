# exercise: update_bias
# says: the ranks' biases drift apart

import torch


def update_bias(group, bias, experts, rate):
    counts = torch.bincount(experts.flatten(), minlength=len(bias))
    bias += rate * torch.sign(counts.double().mean() - counts)
