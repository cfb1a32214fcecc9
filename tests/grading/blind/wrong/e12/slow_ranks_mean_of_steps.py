# exercise: slow_ranks
# says: moves a mean
# the mean over the steps, not the median: one pause makes a rank slow

import torch


def slow_ranks(times, factor=1.1):
    compute = (times[..., 1] - times[..., 0]).mean(dim=1)
    middle = compute.median()
    deviation = 1.4826 * (compute - middle).abs().median()
    limit = torch.maximum(factor * middle, middle + 5 * deviation)
    return torch.where(compute > limit)[0].tolist()
