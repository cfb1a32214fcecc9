# exercise: stochastic_round
# says: up with the probability of the part that is cut
# adds noise of plus or minus half a step and rounds to nearest: below a power of two the step
# is half as wide, so 1.0 or 2.0 themselves move down sometimes; the docstring says "what BF16
# has ... stay".

import torch


def stochastic_round(x: torch.Tensor, generator=None) -> torch.Tensor:
    _, exponent = torch.frexp(x)  # |x| from 2^(exponent - 1) to 2^exponent
    step = torch.ldexp(torch.ones_like(x), exponent - 8)
    noise = torch.rand(x.shape, generator=generator) - 0.5
    moved = (x + noise * step).to(torch.bfloat16)
    still = (x == 0) | ~x.isfinite()
    return torch.where(still, x.to(torch.bfloat16), moved)
