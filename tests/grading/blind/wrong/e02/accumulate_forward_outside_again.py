# exercise: accumulate
# says: all but the last run inside ddp.no_sync()
# Only backward is inside no_sync; the forward of each microbatch runs outside.

import torch
from contextlib import nullcontext


def accumulate(ddp, microbatches: list[torch.Tensor], loss_of) -> torch.Tensor:
    M, total = len(microbatches), 0.0
    for i, microbatch in enumerate(microbatches):
        loss = loss_of(ddp, microbatch) / M
        with nullcontext() if i == M - 1 else ddp.no_sync():
            loss.backward()
        total = total + loss.detach()
    return total
