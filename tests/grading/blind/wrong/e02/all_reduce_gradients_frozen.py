# exercise: all_reduce_gradients
# says: and model.parameters() names a tied one once
# Frozen parameters (requires_grad False) are sent too, and get a gradient of zeros.

import torch


def all_reduce_gradients(group, model: torch.nn.Module) -> None:
    for p in model.parameters():
        if p.grad is None:
            p.grad = torch.zeros_like(p)
        group.all_reduce(p.grad, op="avg")
