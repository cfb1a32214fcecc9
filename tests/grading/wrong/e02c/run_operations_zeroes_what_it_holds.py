# exercise: run_operations
# says: leave the stage's own notes as they are

import torch

from minitrain.training.loss import token_weighted_loss


def run_operations(group, order, stage, batches):
    """Nothing is let go, and the stage's counts of it are set to zero."""
    first, last = group.rank == 0, group.rank == group.size - 1
    total = sum(batch.tokens_counted for batch in batches)
    passes, works, mean = {}, [], torch.zeros(())
    for kind, i, _ in order:
        if kind == "F":
            x = None if first else group.recv(stage.message(batches[i]), group.rank - 1)
            x = None if first else x.requires_grad_()
            out = stage(x, batches[i])
            if last:
                out = token_weighted_loss(out, batches[i].targets, total)
                mean = mean + out.detach()
            else:
                works.append(group.isend(out.detach(), group.rank + 1))
            passes[i] = x, out
            continue
        x, out = passes[i]
        dy = None if last else group.recv(torch.empty_like(out), group.rank + 1)
        out.backward(dy, retain_graph=True)
        if not first:
            works.append(group.isend(x.grad, group.rank - 1))
    for work in works:
        work.wait()
    stage.peak = stage.held = 0
    return mean
