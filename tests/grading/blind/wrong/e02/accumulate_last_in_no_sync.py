# exercise: accumulate
# says: the last one runs outside of ddp.no_sync()
# the last microbatch runs inside no_sync too, so everything is sent in finish and nothing
# overlaps ("All but the last microbatch run inside ddp.no_sync()")

import torch


def accumulate(ddp, microbatches: list[torch.Tensor], loss_of) -> torch.Tensor:
    total = 0.0
    with ddp.no_sync():
        for microbatch in microbatches:
            loss = loss_of(ddp, microbatch) / len(microbatches)
            loss.backward()
            total = total + loss.detach()
    return total
