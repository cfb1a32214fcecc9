import torch


def stochastic_round(x, generator=None):
    """The part that is cut, as a share of the gap, against a number from 0 to 1."""
    down = (x.contiguous().view(torch.int32) & -0x10000).view(torch.float32)
    up = (down.view(torch.int32) + 0x10000).view(torch.float32)
    share = (x.double() - down.double()) / (up.double() - down.double())
    chance = torch.rand(x.shape, dtype=torch.float64, generator=generator)
    near = torch.where(chance < share, up, down)
    return torch.where(x.isfinite(), near, x).to(torch.bfloat16)
