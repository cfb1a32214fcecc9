# exercise: all_reduce_gradients
# says: a rank without this gradient must contribute zeros

import torch


def all_reduce_gradients(group, model):
    for p in model.parameters():
        if p.grad is not None:
            group.all_reduce(p.grad, op="avg")
