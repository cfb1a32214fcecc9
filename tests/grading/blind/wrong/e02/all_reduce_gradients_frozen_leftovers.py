# exercise: all_reduce_gradients
# says: and model.parameters() names a tied one once
# Looks at requires_grad only where there is no gradient, so a parameter that was frozen after a
# backward and still has a `.grad` is sent and changed; "a frozen one (`requires_grad` is False)
# is left alone".

import torch


def all_reduce_gradients(group, model: torch.nn.Module) -> None:
    for p in model.parameters():
        if p.grad is None:
            if not p.requires_grad:
                continue
            p.grad = torch.zeros_like(p)
        group.all_reduce(p.grad, op="avg")
