# exercise: tree_broadcast
# says: the root sends to all of them

import torch


def tree_broadcast(group, tensor, root=0):
    out = tensor.clone()
    if group.rank == root:
        for rank in range(group.size):
            if rank != root:
                group.send(out, rank)
    else:
        group.recv(out, root)
    return out
