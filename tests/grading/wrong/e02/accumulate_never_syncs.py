# exercise: accumulate
# says: expected [True]

import torch


def accumulate(ddp, microbatches, loss_of):
    total = 0.0
    for microbatch in microbatches:
        with ddp.no_sync():
            loss = loss_of(ddp, microbatch) / len(microbatches)
            loss.backward()
        total = total + loss.detach()
    return total
