# exercise: rotate
# says: the two halves
# Pairs neighbouring elements 2i and 2i + 1 instead of i and i + C/2.

import torch


def rotate(x: torch.Tensor, turns) -> torch.Tensor:
    swapped = torch.stack((x[..., 1::2], x[..., ::2]), dim=-1).flatten(-2)
    return x * turns.cos + swapped * turns.sin
