# exercise: stochastic_round
# says: standard errors off

import torch


def stochastic_round(x, generator=None):
    noise = torch.randint(2**15, x.shape, dtype=torch.int32, generator=generator)
    bits = (x.view(torch.int32) + noise) & -(2**16)
    return bits.view(torch.float32).to(torch.bfloat16)
