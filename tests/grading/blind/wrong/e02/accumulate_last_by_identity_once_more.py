# exercise: accumulate
# says: 0 and 3 are the same tensor
# Recognizes the last microbatch by identity, so if the same tensor stands in the list twice it
# synchronizes early; "All but the last microbatch run inside `ddp.no_sync()`", "synchronized
# once".

from contextlib import nullcontext

import torch


def accumulate(ddp, microbatches: list[torch.Tensor], loss_of) -> torch.Tensor:
    mean = 0.0
    for microbatch in microbatches:
        last = microbatch is microbatches[-1]
        with nullcontext() if last else ddp.no_sync():
            loss = loss_of(ddp, microbatch) / len(microbatches)
            loss.backward()
        mean = mean + loss.detach()
    return mean
