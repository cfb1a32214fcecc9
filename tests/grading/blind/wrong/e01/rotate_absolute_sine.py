# exercise: rotate
# says: right only where sin φ is positive
# takes the absolute value of `turns.sin` to get rid of the sign, which is right only while
# sin(angle) >= 0, but the text says "multiply by it as it is".

import torch


def rotate(x: torch.Tensor, turns) -> torch.Tensor:
    a, b = x.chunk(2, dim=-1)
    cos = turns.cos.chunk(2, dim=-1)[0]
    sin = turns.sin.abs().chunk(2, dim=-1)[0]
    return torch.cat([a * cos - b * sin, b * cos + a * sin], dim=-1)
