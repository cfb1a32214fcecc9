# exercise: all_reduce_gradients
# says: divided by the number of ranks twice

import torch


def all_reduce_gradients(group, model):
    for p in model.parameters():
        if p.requires_grad:
            if p.grad is None:
                p.grad = torch.zeros_like(p)
            p.grad /= group.size
            group.all_reduce(p.grad, op="avg")
