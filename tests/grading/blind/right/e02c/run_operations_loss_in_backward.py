# right: keeps the logits and makes the loss in the backward, helper functions instead of branches, torch.autograd.backward
import torch

from minitrain.training.loss import token_weighted_loss


def run_operations(group, order, stage, batches) -> torch.Tensor:
    before = group.rank - 1 if group.rank > 0 else None
    behind = group.rank + 1 if group.rank + 1 < group.size else None
    count = sum(b.tokens_counted for b in batches)
    sends, saved, losses = [], {}, []

    def fetch(batch, source):
        return None if source is None else group.recv(stage.message(batch), source)

    def post(tensor, target):
        if target is not None:
            sends.append(group.isend(tensor, target))

    def forward(batch):
        x = fetch(batch, before)
        if x is not None:
            x.requires_grad_(True)
        out = stage(x, batch)
        post(out.detach(), behind)
        return x, out

    def backward(batch, x, out):
        gradient = fetch(batch, behind)
        if behind is None:
            out = token_weighted_loss(out, batch.targets, count)
            losses.append(out.detach())
        torch.autograd.backward(out, gradient)
        if x is not None:
            post(x.grad, before)

    for operation in order:
        kind, index = operation[:2]
        if kind == "F":
            saved[index] = forward(batches[index])
        else:
            backward(batches[index], *saved.pop(index))
    for send in sends:
        send.wait()
    return torch.stack(losses).sum() if losses else 0
