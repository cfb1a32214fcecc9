# exercise: all_reduce_gradients
# says: and model.parameters() names a tied one once
# `requires_grad` is asked only where `.grad` is None, so a frozen parameter that still has a
# gradient of before is sent and changed: "a frozen one (`requires_grad` is False) is left
# alone", "one all-reduce for each trainable parameter"

import torch


def all_reduce_gradients(group, model: torch.nn.Module) -> None:
    for p in model.parameters():
        if p.grad is None:
            if not p.requires_grad:
                continue
            p.grad = torch.zeros_like(p)
        group.all_reduce(p.grad, op="avg")
