# exercise: all_reduce_gradients
# says: in the place that it has in this order
# sends the gradients it has first and the missing ones last, so ranks that miss different ones
# pair up different parameters ("in the same order on every rank")

import torch


def all_reduce_gradients(group, model: torch.nn.Module) -> None:
    trainable = [p for p in model.parameters() if p.requires_grad]
    used = [p for p in trainable if p.grad is not None]
    unused = [p for p in trainable if p.grad is None]
    for p in used:
        group.all_reduce(p.grad, op="avg")
    for p in unused:
        p.grad = torch.zeros_like(p)
        group.all_reduce(p.grad, op="avg")
