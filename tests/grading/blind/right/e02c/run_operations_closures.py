# right: each microbatch keeps a closure that does its backward; the single rank falls out by itself
import torch
from minitrain.training.loss import token_weighted_loss


def run_operations(group, order, stage, batches) -> torch.Tensor:
    above, below = group.rank - 1, group.rank + 1
    n = sum(b.tokens_counted for b in batches)
    works, todo, loss = [], {}, 0

    def backward(x, out, batch):
        gradient = None
        if below < group.size:
            gradient = group.recv(stage.message(batch), below)
        torch.autograd.backward(out, gradient)
        if x is not None:
            works.append(group.isend(x.grad, above))

    for kind, i, c in order:
        if kind == "B":
            backward(*todo.pop((i, c)))
            continue
        x = None
        if above >= 0:
            x = group.recv(stage.message(batches[i]), above).requires_grad_(True)
        out = stage(x, batches[i])
        if below < group.size:
            works.append(group.isend(out.detach(), below))
        else:
            out = token_weighted_loss(out, batches[i].targets, n)
            loss = loss + out.detach()
        todo[i, c] = x, out, batches[i]
        del x, out
    while works:
        works.pop(0).wait()
    return loss
