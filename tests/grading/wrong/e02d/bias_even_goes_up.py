# exercise: update_bias
# says: got neither less nor more

import torch


def update_bias(group, bias, experts, rate):
    counts = torch.bincount(experts.flatten(), minlength=len(bias))
    group.all_reduce(counts)
    bias += rate * ((counts <= counts.double().mean()) * 2.0 - 1.0)
