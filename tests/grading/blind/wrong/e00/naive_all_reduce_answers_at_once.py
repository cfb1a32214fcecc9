# exercise: naive_all_reduce
# says: that is the sum of ranks
# Rank 0 answers each rank as soon as it has added its part, so with more than two ranks the
# early ones get a partial sum; "The sum over ranks on every rank: to rank 0, added up there,
# and out again".

import torch


def naive_all_reduce(group, tensor: torch.Tensor) -> torch.Tensor:
    total = tensor.clone()
    if group.rank == 0:
        for rank in range(1, group.size):
            total += group.recv(torch.empty_like(total), rank)
            group.send(total, rank)
    else:
        group.send(tensor, 0)
        group.recv(total, 0)
    return total
