# exercise: all_reduce_gradients
# says: and model.parameters() names a tied one once
# Walks every name, so a tied parameter is sent under both of its names; "A *tied* parameter,
# one tensor under two names (embedding and head), is sent once".

import torch


def all_reduce_gradients(group, model: torch.nn.Module) -> None:
    for _, p in model.named_parameters(remove_duplicate=False):
        if p.requires_grad:
            if p.grad is None:
                p.grad = torch.zeros_like(p)
            group.all_reduce(p.grad, op="avg")
