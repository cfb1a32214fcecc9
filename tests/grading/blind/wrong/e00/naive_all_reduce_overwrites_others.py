# exercise: naive_all_reduce
# says: changed its input
# Saves the clone on all ranks but 0 and receives the sum into their input; "`tensor` is left as
# it was" (on every rank).

import torch


def naive_all_reduce(group, tensor: torch.Tensor) -> torch.Tensor:
    total = tensor.clone() if group.rank == 0 else tensor  # only rank 0 adds
    if group.rank == 0:
        for rank in range(1, group.size):
            total += group.recv(torch.empty_like(total), rank)
        for rank in range(1, group.size):
            group.send(total, rank)
    else:
        group.send(tensor, 0)
        group.recv(total, 0)
    return total
