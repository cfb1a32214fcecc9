# exercise: stochastic_round
# says: x itself has changed

import torch


def stochastic_round(x, generator=None):
    bits = x.view(torch.int32)
    bits += torch.randint(2**16, x.shape, dtype=torch.int32, generator=generator)
    bits &= -(2**16)
    return x.to(torch.bfloat16)
