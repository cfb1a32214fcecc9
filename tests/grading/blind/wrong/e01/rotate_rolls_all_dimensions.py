# exercise: rotate
# says: `roll` without `dims`
# `roll` without `dims` flattens x first, so the first half of a head meets the head (or token)
# before it; "Element i of the last dimension is paired with element i + C/2".

import torch


def rotate(x: torch.Tensor, turns) -> torch.Tensor:
    half = x.shape[-1] // 2
    return x * turns.cos + x.roll(half) * turns.sin
