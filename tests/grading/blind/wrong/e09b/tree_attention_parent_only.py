# exercise: tree_attention
# says: that has the parent only
# each node reads the text, its parent and itself, but not its parent's ancestors

import torch


def tree_attention(parents: list, read: int):
    n = len(parents)
    seen = torch.zeros(n, read + n, dtype=torch.bool)
    seen[:, :read] = True
    positions = torch.empty(n, dtype=torch.long)
    for i, parent in enumerate(parents):
        seen[i, read + i] = True
        if parent >= 0:
            seen[i, read + parent] = True
            positions[i] = positions[parent] + 1
        else:
            positions[i] = read
    return seen, positions
