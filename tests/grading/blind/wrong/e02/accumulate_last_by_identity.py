# exercise: accumulate
# says: 0 and 3 are the same tensor
# takes for the last one every microbatch that *is* the last tensor, so a list that holds one
# tensor twice synchronizes twice ("synchronized once", "all but the last microbatch")

from contextlib import nullcontext

import torch


def accumulate(ddp, microbatches: list[torch.Tensor], loss_of) -> torch.Tensor:
    total = 0.0
    for microbatch in microbatches:
        last = microbatch is microbatches[-1]
        with nullcontext() if last else ddp.no_sync():
            loss = loss_of(ddp, microbatch) / len(microbatches)
            loss.backward()
        total = total + loss.detach()
    return total
