# exercise: all_reduce_gradients
# says: A parameter that this rank did not use counts as zero in the average
# An unused parameter's zeros are sent, but the average that comes back is never put into .grad:
# it stays None.

import torch


def all_reduce_gradients(group, model):
    for p in model.parameters():
        if not p.requires_grad:
            continue
        gradient = torch.zeros_like(p) if p.grad is None else p.grad
        group.all_reduce(gradient, op="avg")
