# exercise: naive_all_reduce
# says: rank 0's own part is missing

import torch


def naive_all_reduce(group, tensor):
    total = torch.zeros_like(tensor)
    if group.rank == 0:
        for rank in range(1, group.size):
            total += group.recv(torch.empty_like(total), rank)
        for rank in range(1, group.size):
            group.send(total, rank)
    else:
        group.send(tensor, 0)
        group.recv(total, 0)
    return total
