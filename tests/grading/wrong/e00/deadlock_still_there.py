# exercise: naive_all_reduce
# says: deadlock

import torch


def naive_all_reduce(group, tensor):
    total = tensor.clone()
    if group.rank == 0:
        for rank in range(1, group.size):
            total += group.recv(torch.empty_like(total), rank)
        for rank in range(1, group.size):
            group.send(total, rank)
    else:
        group.recv(total, 0)
        group.send(tensor, 0)
    return total
