# exercise: bytes_between
# says: may lack axes of the mesh
# looks up every axis of the mesh in `sent`, a KeyError where one is missing ("all axes of
# `sent`, which may lack some of the mesh's")

import torch


def bytes_between(mesh, sent: dict, ranks_per_node: int) -> float:
    total = 0
    for axis in mesh.axes:
        for rank in range(torch.Size(mesh.shape).numel()):
            line = mesh.ranks(axis, rank)
            after = line[(line.index(rank) + 1) % len(line)]
            if rank // ranks_per_node != after // ranks_per_node:
                total += sent[axis]
    return total
