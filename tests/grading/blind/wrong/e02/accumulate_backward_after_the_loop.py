# exercise: accumulate
# says: backward ran 1 x for 4 microbatches
# backward stands below the loop: of the last microbatch alone
from contextlib import nullcontext

import torch


def accumulate(ddp, microbatches: list[torch.Tensor], loss_of) -> torch.Tensor:
    total = 0.0
    for index, microbatch in enumerate(microbatches):
        last = index == len(microbatches) - 1
        with nullcontext() if last else ddp.no_sync():
            loss = loss_of(ddp, microbatch) / len(microbatches)
        total = total + loss.detach()
    loss.backward()
    return total
