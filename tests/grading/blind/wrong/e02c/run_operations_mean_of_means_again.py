# exercise: run_operations
# says: in which a token of a half-empty one counts more
# each microbatch's own mean over the number of microbatches, instead of its sum over the count
# of all tokens

import torch

from minitrain.training.loss import token_weighted_loss


def run_operations(group, order, stage, batches) -> torch.Tensor:
    rank, first, last = group.rank, group.rank == 0, group.rank == group.size - 1
    alive, works, loss = {}, [], torch.zeros(())
    for kind, i, _ in order:
        batch = batches[i]
        if kind == "F":
            x = None
            if not first:
                x = group.recv(stage.message(batch), rank - 1).requires_grad_()
            out = stage(x, batch)
            if last:
                out = token_weighted_loss(out, batch.targets, batch.tokens_counted)
                out = out / len(batches)
                loss = loss + out.detach()
            else:
                works.append(group.isend(out.detach(), rank + 1))
            alive[i] = x, out
        else:
            x, out = alive.pop(i)
            if last:
                out.backward()
            else:
                out.backward(group.recv(stage.message(batch), rank + 1))
            if not first:
                works.append(group.isend(x.grad, rank - 1))
    for work in works:
        work.wait()
    return loss
