# exercise: run_operations
# says: `pop` a microbatch in its B
# does not let go of x and out after the backward: the dictionary keeps them until the end

import torch

from minitrain.training.loss import token_weighted_loss


def run_operations(group, order, stage, batches) -> torch.Tensor:
    rank, first, last = group.rank, group.rank == 0, group.rank == group.size - 1
    total = sum(batch.tokens_counted for batch in batches)
    inputs, outputs, works, loss = {}, {}, [], torch.zeros(())
    for kind, i, _ in order:
        batch = batches[i]
        if kind == "F":
            inputs[i] = None
            if not first:
                inputs[i] = group.recv(stage.message(batch), rank - 1).requires_grad_()
            outputs[i] = stage(inputs[i], batch)
            if not last:
                works.append(group.isend(outputs[i].detach(), rank + 1))
        else:
            if last:
                part = token_weighted_loss(outputs[i], batch.targets, total)
                part.backward()
                loss = loss + part.detach()
            else:
                outputs[i].backward(group.recv(stage.message(batch), rank + 1))
            if not first:
                works.append(group.isend(inputs[i].grad, rank - 1))
    for work in works:
        work.wait()
    return loss
