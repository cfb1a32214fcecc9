# exercise: all_reduce_gradients
# says: and model.parameters() names a tied one once
# joins all gradients into one message; the docstring says "one all-reduce for each trainable
# parameter"

import torch


def all_reduce_gradients(group, model: torch.nn.Module) -> None:
    parameters = [p for p in model.parameters() if p.requires_grad]
    if not parameters:
        return
    for p in parameters:
        if p.grad is None:
            p.grad = torch.zeros_like(p)
    flat = torch.cat([p.grad.flatten() for p in parameters])
    group.all_reduce(flat, op="avg")
    for p, piece in zip(parameters, flat.split([p.numel() for p in parameters])):
        p.grad.copy_(piece.view_as(p))
