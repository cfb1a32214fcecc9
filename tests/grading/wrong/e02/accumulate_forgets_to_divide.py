# exercise: accumulate
# says: divide each loss by the number of microbatches

from contextlib import nullcontext

import torch


def accumulate(ddp, microbatches, loss_of):
    total = 0.0
    for index, microbatch in enumerate(microbatches):
        with nullcontext() if index == len(microbatches) - 1 else ddp.no_sync():
            loss = loss_of(ddp, microbatch)
            loss.backward()
        total = total + loss.detach() / len(microbatches)
    return total
