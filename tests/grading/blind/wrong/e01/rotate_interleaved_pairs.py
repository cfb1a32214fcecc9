# exercise: rotate
# says: the two halves
# pairs neighbours 2i and 2i + 1, as the RoPE paper does, not i and i + C/2

import torch


def rotate(x: torch.Tensor, turns) -> torch.Tensor:
    half = x.shape[-1] // 2
    cos, sin = turns.cos[..., half:], turns.sin[..., half:]
    a, b = x[..., 0::2], x[..., 1::2]
    return torch.stack([a * cos - b * sin, b * cos + a * sin], dim=-1).flatten(-2)
