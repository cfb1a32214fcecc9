# exercise: tree_attention
# says: a node reads all its ancestors, however far
# sees the parent and its parent only, no further ancestors: right for shallow trees

import torch


def tree_attention(parents: list, read: int):
    n = len(parents)
    seen = torch.zeros(n, read + n, dtype=torch.bool)
    seen[:, :read] = True
    positions = torch.zeros(n, dtype=torch.long)
    for node, parent in enumerate(parents):
        seen[node, read + node] = True
        positions[node] = read
        if parent >= 0:
            positions[node] = positions[parent] + 1
            seen[node, read + parent] = True
            if parents[parent] >= 0:
                seen[node, read + parents[parent]] = True
    return seen, positions
