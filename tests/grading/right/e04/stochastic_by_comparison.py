import torch


def stochastic_round(x, generator=None):
    """Compares the part that is cut with a random number."""
    bits = x.view(torch.int32)
    cut = bits & 0xFFFF
    up = torch.randint(0x10000, x.shape, dtype=torch.int32, generator=generator) < cut
    near = (bits - cut + 0x10000 * up.int()).view(torch.float32)
    return torch.where(x.isnan() | x.isinf(), x, near).to(torch.bfloat16)
