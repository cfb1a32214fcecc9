# exercise: accumulate
# says: forward must be inside too

from contextlib import nullcontext

import torch


def accumulate(ddp, microbatches, loss_of):
    total = 0.0
    for index, microbatch in enumerate(microbatches):
        loss = loss_of(ddp, microbatch) / len(microbatches)
        with nullcontext() if index == len(microbatches) - 1 else ddp.no_sync():
            loss.backward()
        total = total + loss.detach()
    return total
