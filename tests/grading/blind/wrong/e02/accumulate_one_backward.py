# exercise: accumulate
# says: run each microbatch's backward right after its forward
# runs all forwards first and one backward of their mean, so all microbatches' activations are
# alive at once and no_sync is never used ("Forward and backward of loss_of(ddp, microbatch) for
# each", "all but the last run inside ddp.no_sync()")

import torch


def accumulate(ddp, microbatches: list[torch.Tensor], loss_of) -> torch.Tensor:
    losses = [loss_of(ddp, microbatch) for microbatch in microbatches]
    loss = torch.stack(losses).mean()
    loss.backward()
    return loss.detach()
