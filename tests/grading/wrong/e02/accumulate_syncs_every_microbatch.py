# exercise: accumulate
# says: all but the last run inside ddp.no_sync()

import torch


def accumulate(ddp, microbatches, loss_of):
    total = 0.0
    for microbatch in microbatches:
        loss = loss_of(ddp, microbatch) / len(microbatches)
        loss.backward()
        total = total + loss.detach()
    return total
