# exercise: update_bias
# says: `counts.double().mean()`
# the mean by integer division (counts.mean() refuses integers): an expert just below a mean
# that is no integer stays

import torch


def update_bias(group, bias, experts, rate):
    counts = group.all_reduce(torch.bincount(experts.flatten(), minlength=len(bias)))
    mean = counts.sum() // len(counts)
    bias += rate * torch.sign(mean - counts)
