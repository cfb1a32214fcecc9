# exercise: stochastic_round
# says: draw for each number
# draws noise for the last dimension only and uses it for all rows: equal numbers of a column
# always go the same way; the docstring says "each by itself".

import torch


def stochastic_round(x: torch.Tensor, generator=None) -> torch.Tensor:
    noise = torch.randint(2**16, x.shape[-1:], dtype=torch.int32, generator=generator)
    bits = (x.view(torch.int32) + noise) & -(2**16)
    return bits.view(torch.float32).to(torch.bfloat16)
