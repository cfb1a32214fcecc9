import torch


def accumulate(ddp, microbatches, loss_of):
    """Everything but the last under one no_sync, then the last."""
    *first, last = microbatches
    share, losses = 1 / len(microbatches), []

    def one(microbatch):
        loss = loss_of(ddp, microbatch) * share
        loss.backward()
        losses.append(loss.item())

    if first:
        with ddp.no_sync():
            for microbatch in first:
                one(microbatch)
    one(last)
    return torch.tensor(losses, dtype=torch.float64).sum()
