# exercise: rotate
# says: changed its input
# The result is right, but it is computed in place: the x that was given is changed.

import torch


def rotate(x: torch.Tensor, turns) -> torch.Tensor:
    swapped = x.roll(x.shape[-1] // 2, dims=-1)
    x *= turns.cos
    x += swapped * turns.sin
    return x
