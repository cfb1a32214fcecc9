# exercise: naive_all_reduce
# says: the rank's own tensor

import torch


def naive_all_reduce(group, tensor):
    total = tensor.clone()
    if group.rank == 0:
        for rank in range(1, group.size):
            total += group.recv(torch.empty_like(total), rank)
    else:
        group.send(tensor, 0)
    return total
