# exercise: slow_ranks
# says: a slow rank is over *both* bounds
# Calls a rank slow that is over either bound, c > 1.1 m or c > m + 5 s, where the greater of
# the two has to be passed.

import torch


def slow_ranks(times: torch.Tensor, factor: float = 1.1) -> list[int]:
    compute = (times[:, :, 1] - times[:, :, 0]).median(dim=1).values
    middle = compute.median()
    spread = 1.4826 * (compute - middle).abs().median()
    slow = (compute > factor * middle) | (compute > middle + 5 * spread)
    return slow.nonzero().flatten().tolist()
