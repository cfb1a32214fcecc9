# exercise: all_reduce_gradients
# says: none for frozen ones

import torch


def all_reduce_gradients(group, model):
    for p in model.parameters():
        grad = torch.zeros_like(p) if p.grad is None else p.grad
        group.all_reduce(grad, op="avg")
        if p.requires_grad:
            p.grad = grad
