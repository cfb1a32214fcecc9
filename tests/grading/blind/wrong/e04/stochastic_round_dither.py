# exercise: stochastic_round
# says: up with the probability of the part that is cut
# Up to half a spacing of noise either way, then the nearest number: below a power of two the
# spacing is half as wide, so 1.0 becomes 0.996 one time in four; docstring: "what BF16 has, inf
# and nan stay".

import torch


def stochastic_round(x: torch.Tensor, generator=None) -> torch.Tensor:
    _, exponent = torch.frexp(x)  # |x| = 0.5 to 1 times 2^exponent
    spacing = torch.ldexp(torch.ones_like(x), exponent - 8) * (x != 0)
    noise = torch.rand(x.shape, generator=generator) - 0.5
    return (x + noise * spacing).to(torch.bfloat16)
