# exercise: stochastic_round
# says: `x.view(torch.int32)` shares x's memory
# The bits are a view of x and are changed in place: the caller's x is rounded, too ("x ...
# unchanged").

import torch


def stochastic_round(x: torch.Tensor, generator=None) -> torch.Tensor:
    bits = x.view(torch.int32)
    bits += torch.randint(
        0, 2**16, x.shape, generator=generator, dtype=torch.int32, device=x.device
    )
    bits &= -65536
    return bits.view(torch.float32).bfloat16()
