# exercise: accumulate
# says: all but the last run inside ddp.no_sync()
# only backward runs inside no_sync; the text says "inside ddp.no_sync(), forward included"

from contextlib import nullcontext

import torch


def accumulate(ddp, microbatches: list[torch.Tensor], loss_of) -> torch.Tensor:
    total = 0.0
    for i, microbatch in enumerate(microbatches):
        loss = loss_of(ddp, microbatch) / len(microbatches)
        with nullcontext() if i == len(microbatches) - 1 else ddp.no_sync():
            loss.backward()
        total = total + loss.detach()
    return total
