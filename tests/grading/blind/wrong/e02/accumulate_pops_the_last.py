# exercise: accumulate
# says: as `chunk` makes it
# Takes the last microbatch off the caller's list with pop(): the list is shorter afterwards,
# and a tuple has no pop; "The M microbatches, a list or a tuple".

import torch


def accumulate(ddp, microbatches: list[torch.Tensor], loss_of) -> torch.Tensor:
    M, mean = len(microbatches), 0.0
    last = microbatches.pop()
    with ddp.no_sync():
        for microbatch in microbatches:
            loss = loss_of(ddp, microbatch) / M
            loss.backward()
            mean = mean + loss.detach()
    loss = loss_of(ddp, last) / M
    loss.backward()
    return mean + loss.detach()
