import torch


def rotate(x, turns):
    """Each pair is a complex number, and each angle one of length 1."""
    half = x.shape[-1] // 2
    numbers = torch.complex(x[..., :half], x[..., half:])
    angles = torch.complex(turns.cos[..., half:], turns.sin[..., half:])
    turned = numbers * angles
    return torch.cat([turned.real, turned.imag], dim=-1)
