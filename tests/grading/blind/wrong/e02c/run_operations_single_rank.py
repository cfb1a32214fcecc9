# exercise: run_operations
# says: it has no neighbour
# rank 0 and the last rank are the branches of one if/elif, so a single rank, which is both,
# sends its logits on to a rank that is not there

import torch
from minitrain.training.loss import token_weighted_loss


def run_operations(group, order, stage, batches) -> torch.Tensor:
    first, last = group.rank == 0, group.rank == group.size - 1
    total = sum(batch.tokens_counted for batch in batches)
    kept, sends, loss = {}, [], torch.tensor(0.0)
    for kind, i, chunk in order:
        batch = batches[i]
        if kind == "F":
            if first:
                x = None
                out = stage(x, batch)
                sends.append(group.isend(out.detach(), group.rank + 1))
            else:
                x = group.recv(stage.message(batch), group.rank - 1)
                x = x.detach().requires_grad_()
                out = stage(x, batch)
                if last:
                    out = token_weighted_loss(out, batch.targets, total)
                    loss = loss + out.detach()
                else:
                    sends.append(group.isend(out.detach(), group.rank + 1))
            kept[i] = x, out
        else:
            x, out = kept.pop(i)
            if last:
                out.backward()
            else:
                out.backward(group.recv(stage.message(batch), group.rank + 1))
            if not first:
                sends.append(group.isend(x.grad, group.rank - 1))
    for send in sends:
        send.wait()
    return loss
