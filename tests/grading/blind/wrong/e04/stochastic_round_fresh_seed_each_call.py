# exercise: stochastic_round
# says: which goes on from call to call
# without a generator it makes its own, seeded with 0, at each call: every call draws the same
# noise; the docstring says "or without one from torch own" generator.

import torch


def stochastic_round(x: torch.Tensor, generator=None) -> torch.Tensor:
    generator = generator or torch.Generator().manual_seed(0)
    noise = torch.randint(2**16, x.shape, dtype=torch.int32, generator=generator)
    bits = (x.view(torch.int32) + noise) & -(2**16)
    return bits.view(torch.float32).to(torch.bfloat16)
