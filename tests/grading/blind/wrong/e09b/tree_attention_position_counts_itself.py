# exercise: tree_attention
# says: so a node that follows it stands at `read`
# the position is the number of all that a node reads, itself too: one too many

import torch


def tree_attention(parents: list, read: int):
    n = len(parents)
    seen = torch.zeros(n, read + n, dtype=torch.bool)
    seen[:, :read] = True
    for node, parent in enumerate(parents):
        if parent >= 0:
            seen[node] = seen[parent]
        seen[node, read + node] = True
    return seen, seen.sum(1)
