# exercise: all_reduce_gradients
# says: A parameter that this rank did not use counts as zero in the average
# A rank that did not use a parameter joins with zeros but drops the result, its `.grad` stays
# None; "Leaves the average over ranks in every `.grad`".

import torch


def all_reduce_gradients(group, model: torch.nn.Module) -> None:
    for p in model.parameters():
        if not p.requires_grad:
            continue
        if p.grad is None:
            group.all_reduce(torch.zeros_like(p), op="avg")  # the others wait for us
        else:
            group.all_reduce(p.grad, op="avg")
