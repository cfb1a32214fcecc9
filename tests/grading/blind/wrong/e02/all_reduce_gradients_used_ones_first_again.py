# exercise: all_reduce_gradients
# says: in the place that it has in this order
# Sends the parameters that have a gradient first and the unused ones last, so ranks that used
# different ones send in different orders; "in one order on all ranks".

import torch


def all_reduce_gradients(group, model: torch.nn.Module) -> None:
    trainable = [p for p in model.parameters() if p.requires_grad]
    used = [p for p in trainable if p.grad is not None]
    unused = [p for p in trainable if p.grad is None]
    for p in unused:
        p.grad = torch.zeros_like(p)
    for p in used + unused:
        group.all_reduce(p.grad, op="avg")
