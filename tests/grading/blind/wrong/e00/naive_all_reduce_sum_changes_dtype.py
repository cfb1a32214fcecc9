# exercise: naive_all_reduce
# says: so make the place for what arrives like the chunk that is coming
# Rank 0 adds with torch.stack(...).sum(0), which makes int64 of int32 and smaller integers: its
# result has another dtype and it sends int64 to ranks that wait with int32; "Repair it, with
# the same messages".

import torch


def naive_all_reduce(group, tensor: torch.Tensor) -> torch.Tensor:
    if group.rank == 0:
        parts = [tensor]
        for rank in range(1, group.size):
            parts.append(group.recv(torch.empty_like(tensor), rank))
        total = torch.stack(parts).sum(0)
        for rank in range(1, group.size):
            group.send(total, rank)
    else:
        total = tensor.clone()
        group.send(tensor, 0)
        group.recv(total, 0)
    return total
