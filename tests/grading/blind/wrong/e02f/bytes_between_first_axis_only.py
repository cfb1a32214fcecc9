# exercise: bytes_between
# says: with 1 byte along tp and 0 along others: got 0
# `return` stands inside the loop over the axes, so all but the first of `sent` are left out.
import torch


def bytes_between(mesh, sent: dict, ranks_per_node: int) -> float:
    for axis, nbytes in sent.items():
        total = 0
        for rank in range(torch.Size(mesh.shape).numel()):
            line = mesh.ranks(axis, rank)
            after = line[(line.index(rank) + 1) % len(line)]
            if rank // ranks_per_node != after // ranks_per_node:
                total += nbytes
        return total
