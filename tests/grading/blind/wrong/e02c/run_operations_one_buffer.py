# exercise: run_operations
# says: F of microbatch i receives into a new `stage.message(batches[i])`
# all microbatches are received into one buffer, so the x that a waiting backward needs is
# overwritten; "F: receive x ..., and keep both", right only where one microbatch is held

import torch
from minitrain.training.loss import token_weighted_loss


def run_operations(group, order, stage, batches) -> torch.Tensor:
    total = sum(batch.tokens_counted for batch in batches)
    first, last = group.rank == 0, group.rank == group.size - 1
    passes, works, loss, buffer = {}, [], torch.zeros(()), None
    for kind, i, _ in order:
        batch = batches[i]
        if kind == "F":
            x = None
            if not first:
                if buffer is None:
                    buffer = stage.message(batch)
                x = group.recv(buffer, group.rank - 1).detach().requires_grad_()
            out = stage(x, batch)
            if last:
                out = token_weighted_loss(out, batch.targets, total)
                loss = loss + out.detach()
            else:
                works.append(group.isend(out.detach(), group.rank + 1))
            passes[i] = x, out
        else:
            x, out = passes.pop(i)
            dy = None if last else group.recv(torch.empty_like(out), group.rank + 1)
            out.backward(dy)
            if not first:
                works.append(group.isend(x.grad, group.rank - 1))
    for work in works:
        work.wait()
    return loss
