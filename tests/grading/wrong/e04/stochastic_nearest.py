# exercise: stochastic_round
# says: that is rounding to nearest

import torch


def stochastic_round(x, generator=None):
    return x.to(torch.bfloat16)
