# exercise: bytes_between
# says: how far apart two ranks are
# takes two ranks for one node's if their numbers differ by less than a node's size ("share a
# node if r // ranks_per_node == s // ranks_per_node")

import torch


def bytes_between(mesh, sent: dict, ranks_per_node: int) -> float:
    total = 0
    for axis, nbytes in sent.items():
        for rank in range(torch.Size(mesh.shape).numel()):
            line = mesh.ranks(axis, rank)
            after = line[(line.index(rank) + 1) % len(line)]
            if abs(after - rank) >= ranks_per_node:
                total += nbytes
    return total
