# exercise: run_operations
# says: in which a token of a half-empty one counts more
# every microbatch's own mean, over their number: "Its own mean would weigh tokens of a half-
# empty microbatch twice"; the share is the summed loss over the count of all microbatches.

import torch
from minitrain.training.loss import token_weighted_loss


def run_operations(group, order, stage, batches) -> torch.Tensor:
    first, last = group.rank == 0, group.rank == group.size - 1
    passes, works, loss = {}, [], torch.zeros(())
    for kind, i, _ in order:
        if kind == "F":
            x = None
            if not first:
                x = group.recv(stage.message(batches[i]), group.rank - 1)
                x.requires_grad_()
            out = stage(x, batches[i])
            if last:
                count = batches[i].tokens_counted
                out = token_weighted_loss(out, batches[i].targets, count)
                out = out / len(batches)
                loss = loss + out.detach()
            else:
                works.append(group.isend(out.detach(), group.rank + 1))
            passes[i] = x, out
        else:
            x, out = passes.pop(i)
            dy = None
            if not last:
                dy = group.recv(torch.empty_like(out), group.rank + 1)
            out.backward(dy)
            if not first:
                works.append(group.isend(x.grad, group.rank - 1))
    for work in works:
        work.wait()
    return loss
