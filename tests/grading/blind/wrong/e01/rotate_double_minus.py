# exercise: rotate
# says: the minus came twice
# rotate_half of other code bases, cat([-b, a]) * sin, although the sign is already in
# turns.sin: the minus stands twice

import torch


def rotate(x: torch.Tensor, turns) -> torch.Tensor:
    a, b = x.chunk(2, dim=-1)
    half = torch.cat([-b, a], dim=-1)
    return x * turns.cos + half * turns.sin
