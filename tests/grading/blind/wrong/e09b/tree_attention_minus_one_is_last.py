# exercise: tree_attention
# says: used as an index it is the last node
# the -1 of a root is used as an index: roots read the last node and its ancestors

import torch


def tree_attention(parents: list, read: int):
    n = len(parents)
    up = torch.tensor(parents)
    own = torch.eye(n, dtype=torch.bool)
    for _ in range(n):
        own = own | own[up]
    depth = []
    for parent in parents:
        depth.append(0 if parent < 0 else depth[parent] + 1)
    seen = torch.cat([torch.ones(n, read, dtype=torch.bool), own], dim=1)
    return seen, read + torch.tensor(depth)
