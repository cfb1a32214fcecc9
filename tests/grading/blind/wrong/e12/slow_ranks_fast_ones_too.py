# exercise: slow_ranks
# says: far *below* the median is fast
# whoever is far from the median, on either side

import torch


def slow_ranks(times, factor=1.1):
    compute = (times[:, :, 1] - times[:, :, 0]).median(dim=1).values  # (N,)
    middle = compute.median()
    deviation = 1.4826 * (compute - middle).abs().median()
    limit = torch.maximum(factor * middle, middle + 5 * deviation)
    return ((compute - middle).abs() > limit - middle).nonzero()[:, 0].tolist()
