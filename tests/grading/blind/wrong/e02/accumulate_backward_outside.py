# exercise: accumulate
# says: all but the last run inside ddp.no_sync()
# Only the forward is inside no_sync, the backward (where the hooks run) is outside and sends
# every time; "All but the last microbatch run inside `ddp.no_sync()`, forward and backward".

from contextlib import nullcontext

import torch


def accumulate(ddp, microbatches: list[torch.Tensor], loss_of) -> torch.Tensor:
    M, mean = len(microbatches), 0.0
    for i, microbatch in enumerate(microbatches):
        with nullcontext() if i == M - 1 else ddp.no_sync():
            loss = loss_of(ddp, microbatch) / M
        loss.backward()
        mean = mean + loss.detach()
    return mean
