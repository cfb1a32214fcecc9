# right: all_reduce_gradients walks the parameters in reverse (the same on every rank), divides first and sums, issues everything and then waits; accumulate enters no_sync once for all microbatches but the last
import torch


def all_reduce_gradients(group, model: torch.nn.Module) -> None:
    pending = []
    for p in reversed(list(model.parameters())):
        if p.requires_grad:
            if p.grad is None:
                p.grad = torch.zeros_like(p)
            p.grad.div_(group.size)
            pending.append(group.all_reduce(p.grad, async_op=True))
    for work in pending:
        work.wait()


def accumulate(ddp, microbatches: list[torch.Tensor], loss_of) -> torch.Tensor:
    share = len(microbatches)

    def one(microbatch):
        loss = loss_of(ddp, microbatch) / share
        loss.backward()
        return loss.detach()

    with ddp.no_sync():
        parts = [one(microbatch) for microbatch in microbatches[:-1]]
    parts.append(one(microbatches[-1]))
    return torch.stack(parts).sum()
