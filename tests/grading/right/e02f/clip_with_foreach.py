import torch


def clip_on_mesh(parameters, limit, lines):
    every = list(parameters)
    length = gradient_norm(every, lines)
    factor = torch.clamp(limit / (length + 1e-6), max=1.0)
    gradients = [p.grad for p in every if p.grad is not None]
    torch._foreach_mul_(gradients, factor.item())
    return length
