# exercise: all_reduce_gradients
# says: something is kept from one call to the next

import torch


def all_reduce_gradients(group, model):
    """The list of the first call, for ever."""
    if not hasattr(model, "to_reduce"):
        model.to_reduce = [p for p in model.parameters() if p.requires_grad]
    for p in model.to_reduce:
        if p.grad is None:
            p.grad = torch.zeros_like(p)
        group.all_reduce(p.grad, op="avg")
