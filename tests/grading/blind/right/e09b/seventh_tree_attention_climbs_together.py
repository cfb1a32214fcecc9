# exercise: tree_attention
# differs: all nodes climb one parent at a time together; depth is counted on the way, and nothing
# reads the mask
import torch


def tree_attention(parents, read):
    n = len(parents)
    up = torch.tensor([*parents, -1])  # the last place is the text's own, for -1
    seen = torch.zeros(n, read + n + 1, dtype=torch.bool)
    seen[:, :read] = True
    depth = torch.zeros(n, dtype=torch.long)
    rows, here = torch.arange(n), torch.arange(n)
    while (here >= 0).any():
        seen[rows, torch.where(here >= 0, read + here, read + n)] = True
        here = up[here]
        depth += here >= 0
    return seen[:, :-1].clone(), read + depth
