# exercise: naive_all_reduce
# says: expected
# rank 0 answers each rank right after adding its part, so all but the last get a sum that is
# not complete, but the docstring says "The sum over ranks on every rank" (only 2 ranks come out
# right).

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
