# exercise: slow_ranks
# says: a deviation is 1.4826 times
# forgets the scale 1.4826 of the deviation, so the bound is m + 5 MAD in place of m + 7.4 MAD:
# accuses ranks that are only noisy.

import torch


def slow_ranks(times: torch.Tensor, factor: float = 1.1) -> list[int]:
    compute = (times[:, :, 1] - times[:, :, 0]).median(dim=1).values
    middle = compute.median()
    deviation = (compute - middle).abs().median()
    bound = torch.maximum(factor * middle, middle + 5 * deviation)
    return (compute > bound).nonzero().flatten().tolist()
