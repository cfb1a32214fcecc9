# exercise: all_reduce_gradients
# says: divide by the number of ranks

import torch


def all_reduce_gradients(group, model):
    for p in model.parameters():
        if p.requires_grad:
            if p.grad is None:
                p.grad = torch.zeros_like(p)
            group.all_reduce(p.grad)
