# exercise: run_operations
# says: gradients add up in `.grad`

import torch

from minitrain.training.loss import token_weighted_loss


def run_operations(group, order, stage, batches):
    total = sum(batch.tokens_counted for batch in batches)
    loss, last, passes, works = torch.zeros(()), group.size - 1, {}, []
    for kind, i, _ in order:
        if kind == "F":
            x = None
            if group.rank > 0:
                x = group.recv(stage.message(batches[i]), group.rank - 1).requires_grad_()
            out = stage(x, batches[i])
            if group.rank < last:
                works.append(group.isend(out.detach(), group.rank + 1))
            else:
                out = token_weighted_loss(out, batches[i].targets, total)
                loss = loss + out.detach()
            passes[i] = x, out
        else:
            x, out = passes.pop(i)
            stage.zero_grad()
            dy = None
            if group.rank < last:
                dy = group.recv(torch.empty_like(out), group.rank + 1)
            out.backward(dy)
            if x is not None:
                works.append(group.isend(x.grad, group.rank - 1))
    for work in works:
        work.wait()
    return loss
