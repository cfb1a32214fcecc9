# exercise: all_reduce_gradients
# says: never averaged

import torch


def all_reduce_gradients(group, model):
    for p in model.parameters():
        if p.requires_grad:
            group.all_reduce(p.data, op="avg")
