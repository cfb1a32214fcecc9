# exercise: run_operations
# says: run the list in order
# the last rank runs the backward already with the forward, and its B only sends the gradient:
# it does not run its list

import torch

from minitrain.training.loss import token_weighted_loss


def run_operations(group, order, stage, batches) -> torch.Tensor:
    rank, first, last = group.rank, group.rank == 0, group.rank == group.size - 1
    total = sum(batch.tokens_counted for batch in batches)
    alive, works, loss = {}, [], torch.zeros(())
    for kind, i, _ in order:
        batch = batches[i]
        if kind == "F":
            x = None
            if not first:
                x = group.recv(stage.message(batch), rank - 1).requires_grad_()
            out = stage(x, batch)
            if last:
                part = token_weighted_loss(out, batch.targets, total)
                part.backward()
                loss = loss + part.detach()
            else:
                works.append(group.isend(out.detach(), rank + 1))
            alive[i] = x, out
        else:
            x, out = alive.pop(i)
            if not last:
                out.backward(group.recv(stage.message(batch), rank + 1))
            if not first:
                works.append(group.isend(x.grad, rank - 1))
    for work in works:
        work.wait()
    return loss
