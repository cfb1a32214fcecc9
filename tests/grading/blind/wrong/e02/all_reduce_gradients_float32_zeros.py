# exercise: all_reduce_gradients
# says: all ranks send in the dtype of the parameters, here float64
# The zeros of an unused parameter are always float32: right for float32 models only, not for
# "any model".

import torch


def all_reduce_gradients(group, model):
    for p in model.parameters():
        if p.requires_grad:
            gradient = p.grad
            if gradient is None:
                gradient = torch.zeros(p.shape)
            group.all_reduce(gradient, op="avg")
            if p.grad is None:
                p.grad = gradient.to(p)
