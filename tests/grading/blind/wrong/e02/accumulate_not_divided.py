# exercise: accumulate
# says: divide each loss by the number of microbatches
# The losses are divided by M only in what is returned: the gradients are M times too large.

import torch
from contextlib import nullcontext


def accumulate(ddp, microbatches: list[torch.Tensor], loss_of) -> torch.Tensor:
    M, total = len(microbatches), 0.0
    for i, microbatch in enumerate(microbatches):
        with nullcontext() if i == M - 1 else ddp.no_sync():
            loss = loss_of(ddp, microbatch) 
            loss.backward()
        total = total + loss.detach()
    return total / M
