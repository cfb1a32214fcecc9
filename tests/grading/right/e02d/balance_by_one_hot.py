import torch
import torch.nn.functional as F


def balance_loss(group, p, experts):
    """Counts from one-hot rows, in floating point."""
    m, count = p.shape
    chosen = F.one_hot(experts, count).sum((0, 1)).to(p.dtype)
    total = chosen.clone()
    group.all_reduce(total, op="sum")
    every = total.sum()
    return torch.dot(total, p.sum(0)) * count * experts.shape[1] / every**2
