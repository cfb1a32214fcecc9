# exercise: run_operations
# says: `pop` a microbatch in its B
# B reads x and out from a list that keeps them (and x.grad) until the function returns, so 1F1B
# holds m of them as GPipe does; the text: B "... send `x.grad` back, and let go of both".

import torch
from minitrain.training.loss import token_weighted_loss


def run_operations(group, order, stage, batches) -> torch.Tensor:
    first, last = group.rank == 0, group.rank == group.size - 1
    total = sum(batch.tokens_counted for batch in batches)
    inputs, outputs = [None] * len(batches), [None] * len(batches)
    works, loss = [], torch.zeros(())
    for kind, i, _ in order:
        if kind == "F":
            if not first:
                buffer = stage.message(batches[i])
                inputs[i] = group.recv(buffer, group.rank - 1).requires_grad_()
            outputs[i] = stage(inputs[i], batches[i])
            if last:
                outputs[i] = token_weighted_loss(outputs[i], batches[i].targets, total)
                loss = loss + outputs[i].detach()
            else:
                works.append(group.isend(outputs[i].detach(), group.rank + 1))
        else:
            dy = None
            if not last:
                dy = group.recv(torch.empty_like(outputs[i]), group.rank + 1)
            outputs[i].backward(dy)
            if not first:
                works.append(group.isend(inputs[i].grad, group.rank - 1))
    for work in works:
        work.wait()
    return loss
