# exercise: tree_attention
# says: its parent's parent and so on
# each node reads the text, its parent and itself, but not the ancestors further up

import torch


def tree_attention(parents, read):
    n = len(parents)
    seen = torch.zeros(n, read + n, dtype=torch.bool)
    seen[:, :read] = True
    positions = torch.zeros(n, dtype=torch.long)
    for i, parent in enumerate(parents):
        seen[i, read + i] = True
        if parent >= 0:
            seen[i, read + parent] = True
            positions[i] = positions[parent] + 1
        else:
            positions[i] = read
    return seen, positions
