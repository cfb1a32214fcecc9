# exercise: accumulate
# says: that is divided by the number of microbatches twice
# The returned loss is divided by M twice (the parts are already L/M, and their sum is divided
# again); gradients are right.

import torch
from contextlib import nullcontext


def accumulate(ddp, microbatches, loss_of):
    M, total = len(microbatches), 0.0
    for i, microbatch in enumerate(microbatches):
        with ddp.no_sync() if i < M - 1 else nullcontext():
            loss = loss_of(ddp, microbatch) / M
            loss.backward()
            total = total + loss.detach()
    return total / M
