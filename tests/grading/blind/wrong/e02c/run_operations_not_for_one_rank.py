# exercise: run_operations
# says: a single rank is the first and the last at once
# rank 0 always sends and receives a gradient: with a single rank, which is first and last, it
# speaks to a rank 1 that is not there

import torch

from minitrain.training.loss import token_weighted_loss


def run_operations(group, order, stage, batches) -> torch.Tensor:
    rank, final = group.rank, group.size - 1
    total = sum(batch.tokens_counted for batch in batches)
    alive, works, loss = {}, [], torch.zeros(())
    for kind, i, _ in order:
        batch = batches[i]
        if kind == "F":
            if rank == 0:
                x = None
                out = stage(x, batch)
                works.append(group.isend(out.detach(), 1))
            elif rank == final:
                x = group.recv(stage.message(batch), rank - 1).requires_grad_()
                out = token_weighted_loss(stage(x, batch), batch.targets, total)
                loss = loss + out.detach()
            else:
                x = group.recv(stage.message(batch), rank - 1).requires_grad_()
                out = stage(x, batch)
                works.append(group.isend(out.detach(), rank + 1))
            alive[i] = x, out
        else:
            x, out = alive.pop(i)
            if rank == 0:
                out.backward(group.recv(stage.message(batch), 1))
            elif rank == final:
                out.backward()
                works.append(group.isend(x.grad, rank - 1))
            else:
                out.backward(group.recv(stage.message(batch), rank + 1))
                works.append(group.isend(x.grad, rank - 1))
    for work in works:
        work.wait()
    return loss
