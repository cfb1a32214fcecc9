# exercise: accumulate
# differs: one no_sync around the loop over all but the last, a local function for one microbatch,
# the mean of a stack of detached losses
import torch


def accumulate(ddp, microbatches: list[torch.Tensor], loss_of) -> torch.Tensor:
    *early, final = microbatches
    count = 1 + len(early)

    def run(microbatch):
        loss = loss_of(ddp, microbatch)
        (loss / count).backward()
        return loss.detach()

    losses = []
    if early:
        with ddp.no_sync():
            for microbatch in early:
                losses.append(run(microbatch))
    losses.append(run(final))
    return torch.stack(losses).mean()
