# exercise: accumulate
# differs: one no_sync around all but the last, the last after it by itself; the mean from a stack
#   of the undivided losses
import torch


def accumulate(ddp, microbatches, loss_of) -> torch.Tensor:
    *quiet, last = microbatches

    def part(microbatch):
        loss = loss_of(ddp, microbatch)
        loss.div(len(microbatches)).backward()
        return loss.detach()

    losses = []
    if quiet:
        with ddp.no_sync():
            losses.extend(map(part, quiet))
    losses.append(part(last))
    return torch.stack(losses).mean()


def all_reduce_gradients(group, model: torch.nn.Module) -> None:
    for p in filter(lambda p: p.requires_grad, model.parameters()):
        part = torch.zeros_like(p) if p.grad is None else p.grad / group.size
        group.all_reduce(part)
        p.grad = part.detach()
