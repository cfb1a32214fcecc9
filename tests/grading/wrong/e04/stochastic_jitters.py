# exercise: stochastic_round
# says: which must stay | neither of the two | standard errors off

import torch


def stochastic_round(x, generator=None):
    noise = torch.rand(x.shape, generator=generator) - 0.5
    return (x * (1 + noise * 2**-7)).to(torch.bfloat16)
