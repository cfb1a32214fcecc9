# exercise: all_reduce_gradients
# says: and model.parameters() names a tied one once
# Walks module by module, so a tied parameter is met under both names and sent twice.

import torch


def all_reduce_gradients(group, model):
    for module in model.modules():
        for p in module.parameters(recurse=False):
            if p.requires_grad:
                if p.grad is None:
                    p.grad = torch.zeros_like(p)
                group.all_reduce(p.grad, op="avg")
