# exercise: tree_attention
# says: that is the parent's *number* and one more
# position = read + number of the parent + 1: the parent's number in the row is taken for its
# depth (right for a chain only)

import torch


def tree_attention(parents: list, read: int):
    n = len(parents)
    own = torch.zeros(n, n, dtype=torch.bool)
    for i, parent in enumerate(parents):
        if parent >= 0:
            own[i] |= own[parent]
        own[i, i] = True
    seen = torch.cat([torch.ones(n, read, dtype=torch.bool), own], dim=1)
    positions = read + torch.tensor(parents) + 1
    return seen, positions
