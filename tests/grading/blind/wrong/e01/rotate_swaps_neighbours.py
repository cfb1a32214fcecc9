# exercise: rotate
# says: that pairs numbers 2i and 2i+1
# the rotate_half of code that pairs neighbours, beside tables whose halves pair i with i + C/2
import torch


def rotate(x: torch.Tensor, turns) -> torch.Tensor:
    a, b = x[..., 0::2], x[..., 1::2]
    swapped = torch.stack([b, a], dim=-1).flatten(-2)
    return x * turns.cos + swapped * turns.sin
