# exercise: all_reduce_gradients
# says: the average must be left in `.grad`
# Where grad is None, zeros join the all-reduce, but the average is thrown away: .grad stays
# None.

import torch


def all_reduce_gradients(group, model):
    for p in model.parameters():
        if not p.requires_grad:
            continue
        grad = p.grad if p.grad is not None else torch.zeros_like(p)
        group.all_reduce(grad, op="avg")
