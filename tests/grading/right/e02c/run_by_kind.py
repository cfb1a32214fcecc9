import torch

from minitrain.training.loss import token_weighted_loss


def run_operations(group, order, stage, batches):
    """A function for each kind; the loss is what is added up, with its graph."""
    first, last = group.rank == 0, group.rank + 1 == group.size
    counted = torch.tensor([batch.tokens_counted for batch in batches]).sum()
    inputs, outputs, works, shares = {}, {}, [], []

    def forward(i):
        if not first:
            inputs[i] = torch.zeros_like(stage.message(batches[i]))
            group.irecv(inputs[i], group.rank - 1).wait()
            inputs[i].requires_grad = True
        outputs[i] = stage(inputs.get(i), batches[i])
        if last:
            outputs[i] = token_weighted_loss(outputs[i], batches[i].targets, counted)
            shares.append(outputs[i])
        else:
            works.append(group.isend(outputs[i].detach().clone(), group.rank + 1))

    def backward(i):
        out, x = outputs.pop(i), inputs.pop(i, None)
        slope = torch.ones_like(out) if last else group.recv(torch.empty_like(out), group.rank + 1)
        torch.autograd.backward(out, slope)
        if not first:
            works.append(group.isend(x.grad, group.rank - 1))

    for operation in order:
        {"F": forward, "B": backward}[operation.kind](operation.microbatch)
    for work in reversed(works):
        work.wait()
    return sum(shares)
