# exercise: all_reduce_gradients
# says: one each

import torch


def all_reduce_gradients(group, model):
    parameters = [p for p in model.parameters() if p.requires_grad]
    parts = [torch.zeros_like(p) if p.grad is None else p.grad for p in parameters]
    flat = torch.cat([part.flatten() for part in parts])
    group.all_reduce(flat, op="avg")
    for p, piece in zip(parameters, flat.split([p.numel() for p in parameters])):
        p.grad = piece.view_as(p)
