# exercise: balance_loss
# says: only E counts travel

import torch


def balance_loss(group, p, experts):
    """Everybody's choices and p, in a table with room for sixteen tokens a rank."""
    table = torch.zeros(group.size, 16, p.shape[1], dtype=p.dtype)
    table[group.rank, : len(p)].scatter_(1, experts, 1.0)
    group.all_reduce(table)
    counts = table.sum((0, 1))
    f = counts / counts.sum()
    return p.shape[1] * (f * p.sum(0)).sum() * experts.shape[1] / counts.sum()
