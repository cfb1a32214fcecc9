# exercise: run_operations
# says: in which a token of a half-empty one counts more
# gradients are right, but the loss returned is the mean of the microbatches' own means, right
# only where all are equally full; "Returns that loss": "the mean over the tokens of all
# `batches`"

import torch
from minitrain.training.loss import token_weighted_loss


def run_operations(group, order, stage, batches) -> torch.Tensor:
    total = sum(batch.tokens_counted for batch in batches)
    first, last = group.rank == 0, group.rank == group.size - 1
    passes, works, losses = {}, [], []
    for kind, i, _ in order:
        batch = batches[i]
        if kind == "F":
            x = None
            if not first:
                x = group.recv(stage.message(batch), group.rank - 1).requires_grad_()
            out = stage(x, batch)
            if last:
                out = token_weighted_loss(out, batch.targets, total)
                losses.append(out.detach() * total / batch.tokens_counted)
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
    return torch.stack(losses).mean() if losses else torch.zeros(())
