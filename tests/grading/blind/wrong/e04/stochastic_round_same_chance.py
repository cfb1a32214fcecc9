# exercise: stochastic_round
# says: which goes on from call to call
# Without a generator each call draws the same numbers from a fresh seed 0, so a given element
# goes the same way in every call; "round up or down *by chance*, so that the mean is exact".

import torch


def stochastic_round(x: torch.Tensor, generator=None) -> torch.Tensor:
    if generator is None:
        generator = torch.Generator().manual_seed(0)
    noise = torch.randint(2**16, x.shape, dtype=torch.int32, generator=generator)
    bits = (x.view(torch.int32) + noise) & -(2**16)
    return bits.view(torch.float32).to(torch.bfloat16)
