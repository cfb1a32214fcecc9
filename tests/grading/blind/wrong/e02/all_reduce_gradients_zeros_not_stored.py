# exercise: all_reduce_gradients
# says: A parameter that this rank did not use counts as zero in the average
# a rank with `grad is None` sends zeros but throws the average away and keeps None, so its
# weights diverge ("averages the gradients over ranks, in place", "all end with the same
# weights")

import torch


def all_reduce_gradients(group, model: torch.nn.Module) -> None:
    for p in model.parameters():
        if not p.requires_grad:
            continue
        gradient = torch.zeros_like(p) if p.grad is None else p.grad
        group.all_reduce(gradient, op="avg")
