# exercise: run_operations
# says: `pop` a microbatch in its B
# x and out of every microbatch stay in the dictionary after their backward, so 1F1B holds as
# many as GPipe; "send `x.grad` back, and let go of both"

import torch
from minitrain.training.loss import token_weighted_loss


def run_operations(group, order, stage, batches) -> torch.Tensor:
    total = sum(batch.tokens_counted for batch in batches)
    first, last = group.rank == 0, group.rank == group.size - 1
    passes, works, loss = {}, [], torch.zeros(())
    for kind, i, _ in order:
        batch = batches[i]
        if kind == "F":
            x = None
            if not first:
                x = group.recv(stage.message(batch), group.rank - 1).requires_grad_()
            out = stage(x, batch)
            if last:
                out = token_weighted_loss(out, batch.targets, total)
                loss = loss + out.detach()
            else:
                works.append(group.isend(out.detach(), group.rank + 1))
            passes[i] = x, out
        else:
            x, out = passes[i]
            dy = None if last else group.recv(torch.empty_like(out), group.rank + 1)
            out.backward(dy)
            if not first:
                works.append(group.isend(x.grad, group.rank - 1))
    for work in works:
        work.wait()
    return loss
