# exercise: ring_all_reduce
# says: on a ring each rank talks to one neighbour only | messages; an all-reduce on 5 ranks takes

import torch


def ring_all_reduce(group, tensor):
    total = tensor.clone()
    if group.rank == 0:
        for rank in range(1, group.size):
            total += group.recv(torch.empty_like(total), rank)
        for rank in range(1, group.size):
            group.send(total, rank)
    else:
        group.send(total, 0)
        group.recv(total, 0)
    return total
