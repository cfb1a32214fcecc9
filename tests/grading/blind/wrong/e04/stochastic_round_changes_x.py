# exercise: stochastic_round
# says: changed its input
# The noise is added to the bits of x itself, so the caller's x is rounded too; docstring: "x
# float32, any shape -> a new bfloat16 tensor".

import torch


def stochastic_round(x: torch.Tensor, generator=None) -> torch.Tensor:
    bits = x.view(torch.int32)
    bits += torch.randint(2**16, x.shape, dtype=torch.int32, generator=generator)
    bits &= -(2**16)
    return bits.view(torch.float32).to(torch.bfloat16)
