# exercise: rotate
# the two halves by the formula itself, with one half of each table, and joined at the end
import torch


def rotate(x: torch.Tensor, turns) -> torch.Tensor:
    half = x.shape[-1] // 2
    a, b = x[..., :half], x[..., half:]
    cos, sin = turns.cos[..., :half], turns.sin[..., half:]
    return torch.cat([a * cos - b * sin, b * cos + a * sin], dim=-1)
