# exercise: stochastic_round
# says: up with the probability of the part that is cut
# draws only the upper 4 of the 16 bits of noise: right for quarters and sixteenths, yet a
# number less than 1/16 of the way up never goes up ("right in the mean").

import torch


def stochastic_round(x: torch.Tensor, generator=None) -> torch.Tensor:
    noise = torch.randint(
        16, x.shape, dtype=torch.int32, generator=generator, device=x.device
    )
    bits = (x.view(torch.int32) + noise * 4096) & -(2**16)
    return bits.view(torch.float32).to(torch.bfloat16)
