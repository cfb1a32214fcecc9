# exercise: accumulate
# says: that is the last one's

from contextlib import nullcontext

import torch


def accumulate(ddp, microbatches, loss_of):
    for index, microbatch in enumerate(microbatches):
        with nullcontext() if index == len(microbatches) - 1 else ddp.no_sync():
            loss = loss_of(ddp, microbatch)
            (loss / len(microbatches)).backward()
    return loss.detach()
