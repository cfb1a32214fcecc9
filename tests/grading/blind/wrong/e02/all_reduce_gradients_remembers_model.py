# exercise: all_reduce_gradients
# says: something is kept from one call to the next
# Keeps the list of parameters of the first call, so a second model in the same process (or one
# whose layers are frozen later) is never averaged; "Any model, any number of calls".

import torch

trainable = []


def all_reduce_gradients(group, model: torch.nn.Module) -> None:
    if not trainable:  # walking the modules is slow, do it once
        trainable.extend(p for p in model.parameters() if p.requires_grad)
    for p in trainable:
        if p.grad is None:
            p.grad = torch.zeros_like(p)
        group.all_reduce(p.grad, op="avg")
