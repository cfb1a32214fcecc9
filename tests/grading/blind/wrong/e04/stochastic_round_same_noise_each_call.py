# exercise: stochastic_round
# says: which goes on from call to call
# without a generator it makes one with seed 0 at each call, so every call rounds with the same
# noise ("Draws from `generator`, or without one from torch's own").

import torch


def stochastic_round(x: torch.Tensor, generator=None) -> torch.Tensor:
    if generator is None:
        generator = torch.Generator(device=x.device).manual_seed(0)
    noise = torch.randint(
        2**16, x.shape, dtype=torch.int32, generator=generator, device=x.device
    )
    bits = (x.view(torch.int32) + noise) & -(2**16)
    return bits.view(torch.float32).to(torch.bfloat16)
