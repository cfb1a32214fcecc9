import torch


def rotate(x, turns):
    """Each half by itself; the sign of sin is taken from its second half."""
    size = x.shape[-1] // 2
    first, second = x[..., :size], x[..., size:]
    c, s = turns.cos[..., :size], turns.sin[..., size:]
    return torch.cat((first * c - second * s, second * c + first * s), dim=-1)
