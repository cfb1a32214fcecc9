# exercise: all_reduce_gradients
# says: two share one tensor
# unused parameters of one shape share one tensor of zeros, so the second sends the first one's
# average and both gradients are one tensor ("this rank's part of the sum is zero")

import torch


def all_reduce_gradients(group, model: torch.nn.Module) -> None:
    zeros = {}  # made once for each shape
    for p in model.parameters():
        if not p.requires_grad:
            continue
        if p.grad is None:
            key = (p.shape, p.dtype, p.device)
            if key not in zeros:
                zeros[key] = torch.zeros_like(p)
            p.grad = zeros[key]
        group.all_reduce(p.grad, op="avg")
