# exercise: run_operations
# says: all of them wait for a send
# waits for each send right after it is begun, instead of after the last operation

import torch

from minitrain.training.loss import token_weighted_loss


def run_operations(group, order, stage, batches) -> torch.Tensor:
    rank, first, last = group.rank, group.rank == 0, group.rank == group.size - 1
    total = sum(batch.tokens_counted for batch in batches)
    alive, loss = {}, torch.zeros(())
    for kind, i, _ in order:
        batch = batches[i]
        if kind == "F":
            x = None
            if not first:
                x = group.recv(stage.message(batch), rank - 1).requires_grad_()
            out = stage(x, batch)
            if last:
                out = token_weighted_loss(out, batch.targets, total)
                loss = loss + out.detach()
            else:
                group.isend(out.detach(), rank + 1).wait()
            alive[i] = x, out
        else:
            x, out = alive.pop(i)
            if last:
                out.backward()
            else:
                out.backward(group.recv(stage.message(batch), rank + 1))
            if not first:
                group.isend(x.grad, rank - 1).wait()
    return loss
