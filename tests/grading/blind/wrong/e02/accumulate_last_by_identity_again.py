# exercise: accumulate
# says: 0 and 3 are the same tensor
# the last microbatch is recognised by identity, so where the same tensor is in the list more
# than once (`[tokens] * 4`) earlier ones run outside `no_sync` too and are sent: "All but the
# last microbatch run inside `ddp.no_sync()`", "synchronized once"

from contextlib import nullcontext

import torch


def accumulate(ddp, microbatches: list[torch.Tensor], loss_of) -> torch.Tensor:
    total, last = 0, microbatches[-1]
    for microbatch in microbatches:
        with nullcontext() if microbatch is last else ddp.no_sync():
            loss = loss_of(ddp, microbatch) / len(microbatches)
            loss.backward()
        total = total + loss.detach()
    return total
