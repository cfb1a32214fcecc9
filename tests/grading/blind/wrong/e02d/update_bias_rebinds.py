# exercise: update_bias
# says: the bias that was given is unchanged
# makes a new tensor and binds the local name to it, so that the caller's bias stays as it was

import torch


def update_bias(group, bias, experts, rate):
    counts = group.all_reduce(torch.bincount(experts.flatten(), minlength=len(bias))).double()
    bias = bias + rate * torch.sign(counts.mean() - counts).to(bias.dtype)
