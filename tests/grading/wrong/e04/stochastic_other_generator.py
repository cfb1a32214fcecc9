# exercise: stochastic_round
# says: the global generator has moved

import torch


def stochastic_round(x, generator=None):
    noise = torch.randint(2**16, x.shape, dtype=torch.int32)
    bits = (x.view(torch.int32) + noise) & -(2**16)
    return bits.view(torch.float32).to(torch.bfloat16)
